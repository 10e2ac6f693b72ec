"""Collectives in which every rank waits for every other: what ties the hosts' clocks together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from moescope.align.collectives import SYNCHRONISING
from moescope.align.robust import huber_line, mad

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

MAX_DRIFT = 200e-6
"""Clocks of machines differ by tens of ppm; a steeper slope is the collectives' doing, not the clock's."""
MIN_FOR_DRIFT = 6
MIN_IN_CLASS = 3
TIGHT_FACTOR = 2.0
"""Classes whose residual is within this factor of the tightest class's take part in the fit."""


@dataclass(frozen=True, slots=True)
class Anchors:
    """Per instance and host first end and last start, [instances, hosts], ns after ``origin_ns``, NaN where absent.

    ``kind_class`` [instances]: collectives of one kind, type and size (to a power of two) share a class.
    """

    origin_ns: int
    first_end: FloatArray
    last_start: FloatArray
    kind_class: IntArray


@dataclass(frozen=True, slots=True)
class OffsetFit:
    """offset(t) = offset + drift * (t - origin) from first-leaver differences; ``residual`` is their MAD."""

    offset: float
    drift: float
    residual: float
    num_anchors: int


def waits_for_all() -> pl.Expr:
    """Whether a row's collective ends on no rank before all have begun: synchronising, with data for every pair."""
    has_data = (pl.col("in_splits").list.min().fill_null(1) > 0).all().over("instance")
    return pl.col("kind").is_in(list(SYNCHRONISING)) & has_data


def find_anchors(rows: pl.DataFrame, host_of_rank: Mapping[int, str], hosts: Sequence[str]) -> Anchors:
    """Synchronising collectives without an empty pair among ``match.Matched.rows``, in local time.

    What is said of two ranks that were recorded holds whether or not a third was.
    """
    column_of = {rank: hosts.index(host) for rank, host in host_of_rank.items()}
    usable = rows.filter(waits_for_all())
    middle = usable["start_ns"].median()
    origin = int(middle) if isinstance(middle, int | float) else 0
    size = pl.col("send_bytes").fill_null(0).median().clip(1).log(2).round()
    per_host = (
        usable.with_columns(column=pl.col("rank").replace_strict(column_of, return_dtype=pl.Int64))
        .with_columns(size=size.over("instance"))
        .with_columns(kind_class=pl.struct("kind", "dtype", "size").rank("dense").cast(pl.Int64))
        .group_by("instance", "column")
        .agg(
            first_end=pl.col("end_ns").min() - origin,
            last_start=pl.col("start_ns").max() - origin,
            kind_class=pl.col("kind_class").min(),
        )
        .with_columns(row=pl.col("instance").rank("dense").cast(pl.Int64) - 1)
    )
    shape = (per_host["row"].n_unique(), len(hosts))
    first_end, last_start = np.full(shape, np.nan), np.full(shape, np.nan)
    kind_class = np.zeros(shape[0], dtype=np.int64)
    at = per_host["row"].to_numpy(), per_host["column"].to_numpy()
    first_end[at], last_start[at] = per_host["first_end"].to_numpy(), per_host["last_start"].to_numpy()
    kind_class[at[0]] = per_host["kind_class"].to_numpy()
    return Anchors(origin, first_end, last_start, kind_class)


def fit_offset(anchors: Anchors, column: int, drift: float | None = None) -> OffsetFit:
    """Offset and drift of one host from first-leaver differences against column 0; the offset alone at a given drift.

    Only the classes whose differences scatter least count: small collectives of equal size, where ranks leave
    together; in large uneven exchanges a host that sends less leaves earlier, on every instance.
    """
    both = ~np.isnan(anchors.first_end[:, column]) & ~np.isnan(anchors.first_end[:, 0])
    time = anchors.first_end[both, column]
    difference = time - anchors.first_end[both, 0]
    if len(time) == 0:
        return OffsetFit(0.0, 0.0, 0.0, 0)
    tight = _tightest(time, difference, anchors.kind_class[both])
    fit = _line(time[tight], difference[tight]) if drift is None else _flat(time[tight], difference[tight], drift)
    return OffsetFit(fit.offset, fit.drift, fit.residual, int(tight.sum()))


def _tightest(time: FloatArray, difference: FloatArray, kind_class: IntArray) -> npt.NDArray[np.bool_]:
    """The members of the classes that scatter least around their own fit; all where no class is large enough."""
    classes, counts = np.unique(kind_class, return_counts=True)
    large = classes[counts >= MIN_IN_CLASS]
    if len(large) == 0:
        return np.ones(len(time), dtype=bool)
    scatter = {}
    for value in large:
        mine = kind_class == value
        scatter[int(value)] = _line(time[mine], difference[mine]).residual * (1 + MIN_IN_CLASS / mine.sum())
    limit = TIGHT_FACTOR * min(scatter.values())
    return np.isin(kind_class, [value for value, residual in scatter.items() if residual <= limit])


def _line(time: FloatArray, difference: FloatArray) -> OffsetFit:
    """Drift only where there are enough points and it rises above three times their scatter."""
    flat = _flat(time, difference, 0.0)
    if len(time) < MIN_FOR_DRIFT:
        return flat
    line = huber_line(time, difference)
    drift = float(line.slope)
    residual = mad(difference - line.intercept - drift * time)
    if abs(drift) > MAX_DRIFT or abs(drift) * np.ptp(time) <= 3 * residual:
        return flat
    return OffsetFit(float(line.intercept), drift, residual, len(time))


def _flat(time: FloatArray, difference: FloatArray, drift: float) -> OffsetFit:
    level = difference - drift * time
    return OffsetFit(float(np.median(level)), drift, mad(level), len(time))
