"""One clock per host: offset, drift, and a bracket that provably contains the offset.

Ranks of one host share a clock (Kineto maps the processor's and the device's counters to the same wall clock), so a
clock belongs to a host, never to a rank. Model: local = common + offset + drift * (local - t0).

* Bracket: no rank ends a collective before every rank with data for it has begun, so for each instance and hosts
  g, h: offset_h - offset_g <= min end on h - max start on g. The tightest of these over all instances are
  difference constraints; their shortest-path closure (Floyd and Warshall) gives the bracket.
* Estimate: ranks leave a collective together, so the difference of the first leavers' ends on two hosts is
  the offset plus noise; a Huber fit over the instances gives offset and drift. Where ends are too noisy to trust
  (their spread is more than a quarter of the bracket, as with gloo) the bracket's midpoint is used instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from moescope.align.collectives import SYNCHRONISING
from moescope.align.robust import huber_line, mad

FloatArray = npt.NDArray[np.float64]

MAX_DRIFT = 500e-6
NOISY_SHARE_OF_BRACKET = 0.25
MIN_ANCHORS_FOR_DRIFT = 8


@dataclass(frozen=True, slots=True)
class HostClock:
    """A host's clock against the reference host's, ns; ``low_ns <= offset_ns <= high_ns`` unless contradictory."""

    host: str
    ranks: tuple[int, ...]
    offset_ns: float
    drift: float
    """Dimensionless: ns per ns."""
    origin_ns: int
    """t0: the local time at which the offset holds."""
    low_ns: int
    high_ns: int
    residual_ns: float
    """Spread (MAD) of the end differences around the fit."""
    method: str
    num_anchors: int
    contradictory: bool = False

    @property
    def uncertainty_ns(self) -> int:
        """What an arrival on this host may be off by: three times the residual of a fit, half of the bracket else."""
        if self.method in ("reference", "single host"):
            return 0
        half_bracket = (self.high_ns - self.low_ns) / 2
        if self.method.startswith("first leavers"):
            return int(
                np.ceil(min(3 * self.residual_ns + 1, half_bracket)) if half_bracket > 0 else 3 * self.residual_ns
            )
        return int(np.ceil(half_bracket))

    def to_common(self, local_ns: pl.Series) -> pl.Series:
        """Local times on the common clock, integer ns."""
        local = local_ns.to_numpy()
        shift = self.offset_ns + self.drift * (local - self.origin_ns).astype(np.float64)
        return pl.Series(local_ns.name, local - np.rint(shift).astype(np.int64))


@dataclass(frozen=True, slots=True)
class Anchors:
    """Per instance and host: first end and last start, [instances, hosts], ns since ``origin_ns``, NaN if absent."""

    origin_ns: int
    first_end: FloatArray
    last_start: FloatArray


def host_clocks(rows: pl.DataFrame, host_of_rank: Mapping[int, str]) -> tuple[HostClock, ...]:
    """The clock of every host, reference first.

    ``rows``: matched collectives (``match.Matched.rows``) in local time. ``host_of_rank``: every rank's host.
    """
    hosts = _hosts_by_size(host_of_rank)
    ranks = {host: tuple(sorted(rank for rank, at in host_of_rank.items() if at == host)) for host in hosts}
    origin = int(rows["start_ns"].min() or 0) if len(rows) else 0  # type: ignore[arg-type]
    if len(hosts) == 1:
        return (HostClock(hosts[0], ranks[hosts[0]], 0.0, 0.0, origin, 0, 0, 0.0, "single host", 0),)
    anchors = _anchors(rows, host_of_rank, hosts)
    clocks = [HostClock(hosts[0], ranks[hosts[0]], 0.0, 0.0, anchors.origin_ns, 0, 0, 0.0, "reference", 0)]
    fits = [_fit(anchors, column) for column in range(1, len(hosts))]
    drifts = np.array([0.0, *(fit.drift for fit in fits)])
    low, high, feasible = _bracket(anchors, drifts)
    for column, (host, fit) in enumerate(zip(hosts[1:], fits, strict=True), start=1):
        bracket = (low[column], high[column])
        clocks.append(_clock(host, ranks[host], fit, bracket, feasible=feasible, origin_ns=anchors.origin_ns))
    return tuple(clocks)


def _hosts_by_size(host_of_rank: Mapping[int, str]) -> list[str]:
    first_rank: dict[str, int] = {}
    size: dict[str, int] = {}
    for rank, host in sorted(host_of_rank.items()):
        first_rank.setdefault(host, rank)
        size[host] = size.get(host, 0) + 1
    return sorted(size, key=lambda host: (-size[host], first_rank[host]))


def _anchors(rows: pl.DataFrame, host_of_rank: Mapping[int, str], hosts: list[str]) -> Anchors:
    """Instances in which every rank waits for every other: complete, synchronising, no empty pair."""
    column_of = {rank: hosts.index(host) for rank, host in host_of_rank.items()}
    usable = rows.filter(
        pl.col("kind").is_in(list(SYNCHRONISING))
        & (pl.len().over("instance") == pl.col("members").list.len())
        & (pl.col("in_splits").list.min().fill_null(1) > 0).all().over("instance")
    )
    origin = int(usable["start_ns"].median() or 0) if len(usable) else 0  # type: ignore[arg-type]
    per_host = (
        usable.with_columns(column=pl.col("rank").replace_strict(column_of, return_dtype=pl.Int64))
        .group_by("instance", "column")
        .agg(first_end=pl.col("end_ns").min() - origin, last_start=pl.col("start_ns").max() - origin)
        .with_columns(row=pl.col("instance").rank("dense").cast(pl.Int64) - 1)
    )
    shape = (per_host["row"].n_unique(), len(hosts))
    first_end, last_start = np.full(shape, np.nan), np.full(shape, np.nan)
    at = per_host["row"].to_numpy(), per_host["column"].to_numpy()
    first_end[at], last_start[at] = per_host["first_end"].to_numpy(), per_host["last_start"].to_numpy()
    return Anchors(origin, first_end, last_start)


@dataclass(frozen=True, slots=True)
class _Fit:
    offset: float
    drift: float
    residual: float
    num_anchors: int


def _fit(anchors: Anchors, column: int) -> _Fit:
    """Offset and drift of one host from first-leaver differences against the reference; the tightest half counts."""
    both = ~np.isnan(anchors.first_end[:, column]) & ~np.isnan(anchors.first_end[:, 0])
    ends, ends_ref = anchors.first_end[both, column], anchors.first_end[both, 0]
    if len(ends) == 0:
        return _Fit(0.0, 0.0, 0.0, 0)
    difference = ends - ends_ref
    transfer = ends_ref - np.fmax(anchors.last_start[both, 0], anchors.last_start[both, column] - np.median(difference))
    tight = transfer <= np.median(transfer)
    time, difference = ends[tight], difference[tight]
    constant = float(np.median(difference))
    spread = mad(difference - constant)
    if len(time) < MIN_ANCHORS_FOR_DRIFT:
        return _Fit(constant, 0.0, spread, int(both.sum()))
    line = huber_line(time, difference)
    drift = float(np.clip(line.slope, -MAX_DRIFT, MAX_DRIFT))
    residual = mad(difference - line.intercept - drift * time)
    if abs(drift) * np.ptp(time) <= 3 * residual:
        return _Fit(constant, 0.0, spread, int(both.sum()))
    return _Fit(float(line.intercept), drift, residual, int(both.sum()))


def _bracket(anchors: Anchors, drifts: FloatArray) -> tuple[FloatArray, FloatArray, bool]:
    """(low, high, feasible) of every host's offset against column 0, ns; infinite where nothing bounds it."""
    num_hosts = len(drifts)
    ends = anchors.first_end * (1 - drifts)
    starts = anchors.last_start * (1 - drifts)
    upper = np.full((num_hosts, num_hosts), np.inf)
    for source in range(num_hosts):
        slack = ends - starts[:, [source]]
        has_any = ~np.isnan(slack).all(axis=0)
        upper[source, has_any] = np.nanmin(slack[:, has_any], axis=0)
    np.fill_diagonal(upper, np.minimum(np.diagonal(upper), 0))
    np.fill_diagonal(upper, 0)
    for middle in range(num_hosts):
        upper = np.minimum(upper, upper[:, [middle]] + upper[[middle], :])
    feasible = bool((np.diagonal(upper) >= 0).all())
    return -upper[:, 0], upper[0], feasible


def _clock(
    host: str, ranks: tuple[int, ...], fit: _Fit, bracket: tuple[float, float], *, feasible: bool, origin_ns: int
) -> HostClock:
    low, high = bracket
    if fit.num_anchors == 0 or not np.isfinite([low, high]).all():
        return HostClock(host, ranks, 0.0, 0.0, origin_ns, 0, 0, 0.0, "no anchors: assumed equal", 0)
    if not feasible or low > high:
        method = "first leavers, contradicted by the causal bounds"
        ends = sorted((int(low), int(high)))
        return HostClock(
            host, ranks, fit.offset, fit.drift, origin_ns, ends[0], ends[1], fit.residual, method, fit.num_anchors, True
        )
    offset, method = float(np.clip(fit.offset, low, high)), "first leavers"
    if fit.drift:
        method += " with drift"
    if fit.residual > NOISY_SHARE_OF_BRACKET * (high - low):
        offset, method = (low + high) / 2, "bracket midpoint"
    low_ns, high_ns = int(np.floor(low)), int(np.ceil(high))
    return HostClock(host, ranks, offset, fit.drift, origin_ns, low_ns, high_ns, fit.residual, method, fit.num_anchors)
