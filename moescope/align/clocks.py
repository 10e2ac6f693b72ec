"""One clock per host: offset, drift, and a bracket that provably contains the offset.

Ranks of one host share a clock (Kineto maps the processor's and the device's counters to the same wall clock), so a
clock belongs to a host, never to a rank. Model: local = common + offset + drift * (local - t0).

* Bracket: no rank ends a collective before every rank with data for it has begun, so for each instance and hosts
  g, h: offset_h - offset_g <= min end on h - max start on g, each at its own time. With the reference that bounds a
  host's offset and drift together, whatever the drift; between two other hosts the drifts' ranges loosen the bound.
  These are difference constraints; their shortest-path closure (Floyd and Warshall) gives the bracket.
* Round trips measured by the hooks bound the offset by half their length, and join the constraints.
* Estimate: ranks leave a small collective together, so the difference of the first leavers' ends on two hosts is
  the offset plus noise; a Huber fit over the instances gives offset and drift. A drift that the bounds exclude gives
  way to the one in the middle of what they allow. Where ends are too noisy to trust (their spread is more than a
  quarter of the bracket, as with gloo) the bracket's midpoint is used instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from moescope.align.anchors import MAX_DRIFT, Anchors, OffsetFit, find_anchors, fit_offset
from moescope.align.feasible import Bounds, Shadow, shadow
from moescope.align.measured import OffsetBound, measured_bounds

FloatArray = npt.NDArray[np.float64]

NOISY_SHARE_OF_BRACKET = 0.25
MIN_UNCERTAINTY_NS = 1_000
"""What end alignment cannot see below: that one host's ranks always leave a little later."""


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
        """What an arrival on this host may be off by: three times the scatter of a fit, else the bracket's reach."""
        if self.method in ("reference", "single host") and not self.contradictory:
            return 0
        reach = max(self.high_ns - self.offset_ns, self.offset_ns - self.low_ns, 0.0)
        if self.method.startswith("first leavers"):
            return int(np.ceil(min(max(3 * self.residual_ns, MIN_UNCERTAINTY_NS), reach or np.inf)))
        return int(np.ceil(reach))

    def common_ns(self, local_ns: int) -> int:
        """One local time on the common clock."""
        return local_ns - round(self.offset_ns + self.drift * (local_ns - self.origin_ns))

    def to_common(self, local_ns: pl.Series) -> pl.Series:
        """Local times on the common clock, integer ns."""
        local = local_ns.to_numpy()
        shift = self.offset_ns + self.drift * (local - self.origin_ns).astype(np.float64)
        return pl.Series(local_ns.name, local - np.rint(shift).astype(np.int64))


def host_clocks(
    rows: pl.DataFrame, host_of_rank: Mapping[int, str], clock: pl.DataFrame | None = None
) -> tuple[HostClock, ...]:
    """The clock of every host, reference first.

    ``rows``: matched collectives (``match.Matched.rows``) in local time. ``host_of_rank``: every rank's host.
    ``clock``: offsets measured by the hooks (the telemetry table), None where there are none.
    """
    hosts = _hosts_by_size(host_of_rank)
    ranks = {host: tuple(sorted(rank for rank, at in host_of_rank.items() if at == host)) for host in hosts}
    anchors = find_anchors(rows, host_of_rank, hosts)
    origin = anchors.origin_ns
    if len(hosts) == 1:
        return (HostClock(hosts[0], ranks[hosts[0]], 0.0, 0.0, origin, 0, 0, 0.0, "single host", 0),)
    measured = measured_bounds(clock, host_of_rank, hosts, origin) if clock is not None else ()
    shadows = [_shadow(anchors, column) for column in range(len(hosts))]
    low, high, feasible = _bracket(anchors, shadows, measured)
    fits = [fit_offset(anchors, column) for column in range(1, len(hosts))]
    fits = [_allowed(fit, shadows[column], anchors, column) for column, fit in enumerate(fits, start=1)]
    clocks = [HostClock(hosts[0], ranks[hosts[0]], 0.0, 0.0, origin, 0, 0, 0.0, "reference", 0)]
    for column, (host, fit) in enumerate(zip(hosts[1:], fits, strict=True), start=1):
        bracket = float(low[column]), float(high[column])
        clocks.append(_clock(host, ranks[host], fit, bracket, feasible=feasible, origin_ns=origin))
    return tuple(clocks)


def _shadow(anchors: Anchors, column: int) -> Shadow | None:
    """What the collectives with the reference allow of a host's offset and drift; None where they allow nothing."""
    end, start = anchors.first_end, anchors.last_start
    above = _bounds(end[:, column], end[:, column] - start[:, 0])
    below = _bounds(start[:, column], start[:, column] - end[:, 0])
    return shadow(above, below, MAX_DRIFT) if column else Shadow(0.0, 0.0, 0.0, 0.0, 0.0)


def _bounds(time: FloatArray, value: FloatArray) -> Bounds:
    known = ~np.isnan(value)
    return Bounds(time[known], value[known])


def _allowed(fit: OffsetFit, allowed: Shadow | None, anchors: Anchors, column: int) -> OffsetFit:
    """The fit, with a drift that contradicts no collective."""
    if allowed is None or allowed.slope_low <= fit.drift <= allowed.slope_high:
        return fit
    return fit_offset(anchors, column, allowed.slope)


def _is_noisy(fit: OffsetFit, width_ns: float) -> bool:
    """Whether the ends scatter too much to be trusted against a bracket of this width; a slope then does harm too."""
    return fit.num_anchors == 0 or (width_ns > 0 and fit.residual > NOISY_SHARE_OF_BRACKET * width_ns)


def _hosts_by_size(host_of_rank: Mapping[int, str]) -> list[str]:
    first_rank: dict[str, int] = {}
    size: dict[str, int] = {}
    for rank, host in sorted(host_of_rank.items()):
        first_rank.setdefault(host, rank)
        size[host] = size.get(host, 0) + 1
    return sorted(size, key=lambda host: (-size[host], first_rank[host]))


def _bracket(
    anchors: Anchors, shadows: Sequence[Shadow | None], measured: Sequence[OffsetBound]
) -> tuple[FloatArray, FloatArray, bool]:
    """(low, high, feasible) of every host's offset against column 0, ns; infinite where nothing bounds it."""
    upper = _between_hosts(anchors, shadows)
    for column, allowed in enumerate(shadows):
        if allowed is not None:
            upper[0, column], upper[column, 0] = allowed.high, -allowed.low
    for bound in measured:
        upper[bound.of, bound.to] = min(upper[bound.of, bound.to], bound.high_ns)
        upper[bound.to, bound.of] = min(upper[bound.to, bound.of], -bound.low_ns)
    np.fill_diagonal(upper, 0)
    for middle in range(len(upper)):
        upper = np.minimum(upper, upper[:, [middle]] + upper[[middle], :])
    feasible = None not in shadows and bool((np.diagonal(upper) >= 0).all())
    return -upper[:, 0], upper[0], feasible


def _between_hosts(anchors: Anchors, shadows: Sequence[Shadow | None]) -> FloatArray:
    """[g, h] the most that the offset of h exceeds that of g, whatever drifts in their ranges they have.

    Where a host contradicts the reference, at no drift.
    """
    ranges = [(0.0, 0.0) if one is None else (one.slope_low, one.slope_high) for one in shadows]
    drift = np.array(ranges).T[:, None, :]  # [low or high, 1, hosts]
    ends = anchors.first_end - (drift * anchors.first_end).min(axis=0)
    starts = anchors.last_start - (drift * anchors.last_start).max(axis=0)
    upper = np.full((len(shadows), len(shadows)), np.inf)
    for source in range(len(shadows)):
        slack = ends - starts[:, [source]]
        has_any = (~np.isnan(slack)).any(axis=0)
        upper[source, has_any] = np.nanmin(slack[:, has_any], axis=0, initial=np.inf)
    return upper


def _clock(
    host: str, ranks: tuple[int, ...], fit: OffsetFit, bracket: tuple[float, float], *, feasible: bool, origin_ns: int
) -> HostClock:
    low, high = bracket
    if not np.isfinite([low, high]).all():
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
    if _is_noisy(fit, high - low):
        fit = replace(fit, drift=0.0)
        offset, method = (low + high) / 2, "bracket midpoint"
    low_ns, high_ns = int(np.floor(low)), int(np.ceil(high))
    return HostClock(host, ranks, offset, fit.drift, origin_ns, low_ns, high_ns, fit.residual, method, fit.num_anchors)
