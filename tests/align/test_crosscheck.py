"""Waits that need no clock, held against aligned ones."""

from __future__ import annotations

import polars as pl

from moescope.align.crosscheck import clock_free_disagreement_ns

SCHEMA = {
    "instance": pl.Int64, "rank": pl.Int64, "kind": pl.String, "tier": pl.String, "complete": pl.Boolean,
    "start_ns": pl.Int64, "end_ns": pl.Int64, "arrival_wait_ns": pl.Int64,
}  # fmt: skip


def rows(wait_of_rank_0: int, *, tier: str = "across hosts", kind: str = "all_reduce") -> pl.DataFrame:
    """Rank 0 is in the reduction for 100 ns, rank 1 for 30 ns: without any clock rank 0 waited 70 ns."""
    table = [(0, 0, kind, tier, True, 0, 100, wait_of_rank_0), (0, 1, kind, tier, True, 1070, 1100, 0)]
    return pl.DataFrame(table, SCHEMA, orient="row")


def test_agreement_is_zero_and_a_shifted_clock_shows_in_full() -> None:
    assert clock_free_disagreement_ns(rows(70)) == 0
    assert clock_free_disagreement_ns(rows(20)) == 50


def test_only_kinds_that_end_together_across_hosts_count() -> None:
    assert clock_free_disagreement_ns(rows(20, kind="all_to_all")) == 0
    assert clock_free_disagreement_ns(rows(20, tier="within host")) == 0
    assert clock_free_disagreement_ns(rows(20).head(0)) == 0
