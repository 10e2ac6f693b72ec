"""Ranks said to share a clock: found out where their collectives end before others begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from tiny_rows import exchange, reduction, table

from moescope.align import align_ranks
from moescope.align.causality import contradictions

US = 1_000
ONE_HOST = dict.fromkeys(range(4), "a")


def matched(shifts: Sequence[int], waits: Sequence[Sequence[int]], hosts: Mapping[int, str]) -> pl.DataFrame:
    """Reductions of four ranks, one per list of waits before a common transfer of 20 us; clocks off by ``shifts``."""
    parts = []
    for turn, early in enumerate(waits):
        last = (turn + 1) * 10_000 * US
        starts = {rank: last - early[rank] + shifts[rank] for rank in hosts}
        ends = {rank: last + 20 * US + shifts[rank] for rank in hosts}
        parts.append(table(reduction(starts, ends)).with_columns(instance=pl.lit(turn)))
    return pl.concat(parts)


def test_two_hosts_taken_for_one_are_told_apart() -> None:
    """Ranks 1 and 3 run 700 us ahead; a rank without any wait on each side gives the size away."""
    waits = [[0, 50 * US, 5 * US, 0], [30 * US, 0, 0, 90 * US], [0, 0, 10 * US, 20 * US]]
    (found,) = contradictions(matched([0, 700 * US, 0, 700 * US], waits, ONE_HOST), ONE_HOST)
    assert (found.host, found.num_instances, found.num_checked) == ("a", 3, 3)
    assert found.worst_ns == 680 * US  # the shift less the transfer of 20 us
    assert found.alike == ((0, 2), (1, 3))


@given(st.lists(st.lists(st.integers(0, 5_000 * US), min_size=4, max_size=4), min_size=1, max_size=6))
def test_ranks_that_share_a_clock_are_never_accused(waits: list[list[int]]) -> None:
    on_time = [[wait - min(row) for wait in row] for row in waits]
    assert contradictions(matched([0, 0, 0, 0], on_time, ONE_HOST), ONE_HOST) == ()


def test_whole_microseconds_are_no_contradiction() -> None:
    waits = [[0, 0, 0, 0]]
    assert contradictions(matched([0, 22 * US, 0, 0], waits, ONE_HOST), ONE_HOST) == ()
    assert len(contradictions(matched([0, 23 * US, 0, 0], waits, ONE_HOST), ONE_HOST)) == 1


def test_an_exchange_with_an_empty_pair_proves_nothing() -> None:
    """Rank 0 sends rank 1 nothing and may leave before it comes."""
    rows = table(exchange({0: 0, 1: 900 * US}, {0: 10 * US, 1: 950 * US}, [[1, 0], [0, 1]]))
    assert contradictions(rows.with_columns(instance=0), {0: "a", 1: "a"}) == ()


def test_ranks_of_different_hosts_are_not_compared() -> None:
    hosts = {0: "a", 1: "b", 2: "a", 3: "b"}
    assert contradictions(matched([0, 700 * US, 0, 700 * US], [[0, 0, 0, 0]], hosts), hosts) == ()


def test_a_contradicted_clock_says_so_and_its_waits_carry_the_size() -> None:
    rows = matched([0, 700 * US, 0, 700 * US], [[0, 0, 0, 0]] * 3, ONE_HOST).drop("instance")
    per_rank = [rows.filter(pl.col("rank") == rank) for rank in ONE_HOST]
    alignment = align_ranks(per_rank, ONE_HOST)
    (clock,) = alignment.clocks
    assert clock.contradictory
    assert (clock.low_ns, clock.high_ns, clock.uncertainty_ns) == (-680 * US, 680 * US, 680 * US)
    assert set(alignment.collectives["clock_uncertainty_ns"]) == {680 * US}
