"""Interval unions of a rank's device events over the whole file, for comparison with other tools."""

from __future__ import annotations

from dataclasses import dataclass

from moescope.attribution.device import DeviceIntervals
from moescope.attribution.labels import Label
from moescope.attribution.sweep import union_ns


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


def device_unions(device: DeviceIntervals) -> DeviceUnions:
    """Unions over streams. ``exposed``: communication that no compute covers; ``total``: first start to last end."""
    recorded = device.label != Label.ALLOCATOR
    start, end, label = device.start_ns[recorded], device.end_ns[recorded], device.label[recorded]
    if len(start) == 0:
        return DeviceUnions(0, 0, 0, 0, 0, 0, 0)
    compute = label <= Label.OTHER
    comm = (label > Label.OTHER) & (label < Label.COPY)
    copies = label == Label.COPY
    total, busy = int(end.max() - start.min()), union_ns(start, end)
    compute_ns, both = union_ns(start[compute], end[compute]), compute | comm
    return DeviceUnions(
        total=total,
        busy=busy,
        compute=compute_ns,
        communication=union_ns(start[comm], end[comm]),
        exposed_communication=union_ns(start[both], end[both]) - compute_ns,
        copies=union_ns(start[copies], end[copies]),
        idle=total - busy,
    )
