"""Clock offsets that the hooks measured by round trips between hosts, as bounds at the time of the traces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

UNKNOWN_DRIFT = 50e-6
"""Allowed drift (ns per ns) between the traces and a measurement that no second one brackets."""


@dataclass(frozen=True, slots=True)
class OffsetBound:
    """``low_ns <= offset(hosts[to]) - offset(hosts[of]) <= high_ns``."""

    of: int
    to: int
    low_ns: float
    high_ns: float


def measured_bounds(
    clock: pl.DataFrame, host_of_rank: Mapping[int, str], hosts: Sequence[str], at_ns: int
) -> tuple[OffsetBound, ...]:
    """Bounds at ``at_ns`` from the telemetry table ``clock``; pairs of one host tell nothing and are left out.

    A round trip bounds the offset by half its length. Measurements before and after the traces are interpolated; where
    there is only one side, the bound grows by UNKNOWN_DRIFT with the distance.
    """
    return tuple(_bounds(clock, host_of_rank, hosts, at_ns))


def _bounds(
    clock: pl.DataFrame, host_of_rank: Mapping[int, str], hosts: Sequence[str], at_ns: int
) -> Iterator[OffsetBound]:
    for (rank, peer), rows in clock.group_by(["rank", "peer"], maintain_order=True):
        of, to = host_of_rank.get(int(rank)), host_of_rank.get(int(peer))
        if of is None or to is None or of == to:
            continue
        table = rows.sort("measured_at_ns").select("measured_at_ns", "offset_ns", "round_trip_ns").rows()
        before = [row for row in table if row[0] <= at_ns]
        after = [row for row in table if row[0] > at_ns]
        centre, half = _at(before[-1:] + after[:1], at_ns)
        yield OffsetBound(hosts.index(of), hosts.index(to), centre - half, centre + half)


def _at(table: list[tuple[int, int, int]], at_ns: int) -> tuple[float, float]:
    """(offset, half width) at ``at_ns`` from the one or two measurements nearest to it."""
    half = max(row[2] for row in table) / 2
    time, offset, _ = table[0]
    if len(table) == 1:
        return float(offset), half + UNKNOWN_DRIFT * abs(at_ns - time)
    later, later_offset, _ = table[1]
    share = (at_ns - time) / max(later - time, 1)
    return offset + share * (later_offset - offset), half
