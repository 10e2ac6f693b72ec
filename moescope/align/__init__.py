"""Ranks put side by side: collectives matched, clocks aligned, waits told from transfers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from moescope.align.causality import Contradiction, contradictions
from moescope.align.clocks import HostClock, host_clocks
from moescope.align.crosscheck import clock_free_disagreement_ns
from moescope.align.links import SlowLink
from moescope.align.match import Refusal, match
from moescope.align.phases import infer_phases
from moescope.align.transfer import TransferModel
from moescope.align.waits import with_waits

__all__ = ["Alignment", "Contradiction", "HostClock", "Refusal", "SlowLink", "TransferModel", "align_ranks"]


@dataclass(frozen=True, slots=True)
class Alignment:
    """``collectives``: one row per collective and rank, on the common clock, see ``waits.with_waits``."""

    collectives: pl.DataFrame
    clocks: tuple[HostClock, ...]
    models: Mapping[str, TransferModel]
    refusals: tuple[Refusal, ...]
    num_unmatched: int
    clock_free_disagreement_ns: int = 0
    """See ``crosscheck.clock_free_disagreement_ns``."""
    contradictions: tuple[Contradiction, ...] = ()
    slow_links: tuple[SlowLink, ...] = ()

    def clock_of(self, rank: int) -> HostClock:
        """The clock of the rank's host."""
        return next(clock for clock in self.clocks if rank in clock.ranks)


def align_ranks(
    instances: Sequence[pl.DataFrame],
    host_of_rank: Mapping[int, str],
    clock: pl.DataFrame | None = None,
    transfers: Mapping[str, TransferModel] | None = None,
    link_rates: Mapping[str, float] | None = None,
) -> Alignment:
    """Match, align and split.

    ``instances``: per rank and window the collectives with ``members`` and ``group`` (see ``groups.with_members``),
    on the local clock. ``transfers``: a baseline's models, which go before those fitted to the run.
    ``link_rates``: by tier the bytes per ns that the devices' links carry by their data sheet.
    """
    matched = match(pl.concat(instances))
    clocks = host_clocks(matched.rows, host_of_rank, clock)
    rows = infer_phases(_on_common_clock(matched.rows, clocks))
    contradicted = contradictions(rows, host_of_rank)
    clocks = tuple(_contradicted(clock, contradicted) for clock in clocks)
    waits = with_waits(_not_before_launch(rows), host_of_rank, transfers, link_rates)
    rows = _with_uncertainty(waits.rows, clocks)
    disagreement = clock_free_disagreement_ns(rows)
    return Alignment(
        collectives=rows,
        clocks=clocks,
        models=waits.models,
        refusals=matched.refusals,
        num_unmatched=matched.num_unmatched,
        clock_free_disagreement_ns=disagreement,
        contradictions=contradicted,
        slow_links=waits.slow_links,
    )


def _not_before_launch(rows: pl.DataFrame) -> pl.DataFrame:
    """Starts put off to the launch where the profiler recorded a kernel as earlier (pytorch/kineto#1380)."""
    early_ns = (pl.col("launch_ns") - pl.col("local_start_ns")).fill_null(0)
    return rows.with_columns(start_ns=pl.col("start_ns") + early_ns.clip(0, pl.col("end_ns") - pl.col("start_ns")))


def _contradicted(clock: HostClock, found: Sequence[Contradiction]) -> HostClock:
    """The clock with the reach of what its own ranks contradict; unchanged where they agree."""
    worst = max((entry.worst_ns for entry in found if entry.host == clock.host), default=0)
    if not worst:
        return clock
    low, high = clock.low_ns - worst, clock.high_ns + worst
    return replace(clock, low_ns=low, high_ns=high, method="contradicted by its own ranks", contradictory=True)


def _with_uncertainty(rows: pl.DataFrame, clocks: Sequence[HostClock]) -> pl.DataFrame:
    """Adds ``clock_uncertainty_ns``: of the loosest clock in a collective across hosts; 0 on one host's clock."""
    across = {rank: clock.uncertainty_ns for clock in clocks for rank in clock.ranks}
    within = {rank: clock.uncertainty_ns * clock.contradictory for clock in clocks for rank in clock.ranks}
    known = [pl.col("rank").replace_strict(table, return_dtype=pl.Int64) for table in (across, within)]
    reach = pl.when(pl.col("tier") == "across hosts").then(known[0]).otherwise(known[1])
    return rows.with_columns(clock_uncertainty_ns=reach.max().over("instance"))


def _on_common_clock(rows: pl.DataFrame, clocks: Sequence[HostClock]) -> pl.DataFrame:
    parts = [
        rows.filter(pl.col("rank").is_in(clock.ranks)).with_columns(
            local_start_ns="start_ns", start_ns=pl.lit(0, pl.Int64), end_ns=pl.col("end_ns")
        )
        for clock in clocks
    ]
    moved = []
    for clock, part in zip(clocks, parts, strict=True):
        moved.append(
            part.with_columns(start_ns=clock.to_common(part["local_start_ns"]), end_ns=clock.to_common(part["end_ns"]))
        )
    return pl.concat(moved).sort("instance", "rank")
