"""Interval unions of a rank's device events over the whole file, for comparison with other tools.

Other tools hold a trace's microseconds in float64, and the ends they compute, ``ts + dur``, are off by up to half a
unit in the last place: at the 4e12 us that traces count from their base time that is a quarter of a nanosecond per
event, which adds up. These figures are for comparison, so they are computed in the same arithmetic and agree with
those tools to the nanosecond; every other number of moescope is exact (``docs/decisions/unions-in-float64.md``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moescope.align.ranges import IntArray
from moescope.attribution.device import DeviceIntervals
from moescope.attribution.labels import Label

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DeviceUnions:
    """Union lengths, ns: compute is every kernel that is not communication; copies and memsets are apart."""

    total: int
    busy: int
    compute: int
    communication: int
    exposed_communication: int
    copies: int
    idle: int


def device_unions(device: DeviceIntervals, base_ns: int = 0) -> DeviceUnions:
    """Unions over streams. ``exposed``: communication that no compute covers; ``total``: first start to last end.

    ``base_ns``: the trace's base time, from which its microseconds count.
    """
    recorded = device.label != Label.ALLOCATOR
    label = device.label[recorded]
    if len(label) == 0:
        return DeviceUnions(0, 0, 0, 0, 0, 0, 0)
    start = microseconds(device.start_ns[recorded] - base_ns)
    end = start + microseconds(device.end_ns[recorded] - device.start_ns[recorded])
    compute = label <= Label.OTHER
    comm = (label > Label.OTHER) & (label < Label.COPY)
    copies = label == Label.COPY
    total, busy = float(end.max() - start.min()), _union(start, end)
    compute_us, both = _union(start[compute], end[compute]), compute | comm
    return DeviceUnions(
        total=_ns(total),
        busy=_ns(busy),
        compute=_ns(compute_us),
        communication=_ns(_union(start[comm], end[comm])),
        exposed_communication=_ns(_union(start[both], end[both]) - compute_us),
        copies=_ns(_union(start[copies], end[copies])),
        idle=_ns(total) - _ns(busy),
    )


def microseconds(ns: IntArray) -> FloatArray:
    """The float64 nearest to the decimal text; whole and fraction are converted apart, so that nothing is lost."""
    return ns // 1000 + (ns % 1000) / 1000


def _union(start: FloatArray, end: FloatArray) -> float:
    """Total length of the union of half-open intervals."""
    if len(start) == 0:
        return 0.0
    order = np.argsort(start, kind="stable")
    begin, reach = start[order], np.maximum.accumulate(end[order])
    begun = np.maximum(begin[1:], reach[:-1])
    return float(reach[0] - begin[0] + np.maximum(reach[1:] - begun, 0).sum())


def _ns(us: float) -> int:
    return round(us * 1000)
