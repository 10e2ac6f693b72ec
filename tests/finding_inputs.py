"""Inputs of the rules, made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from moescope.align import Alignment, HostClock, Refusal
from moescope.attribution import Attribution
from moescope.attribution.memory import MemoryProfile
from moescope.findings import Inputs

STEP_NS = 1_000_000
RANKS = (0, 1, 2, 3)

Cause = tuple[str, int | None, int | None, float]
"""cause, culprit, layer, cost per step."""


def inputs(
    *,
    causes: Sequence[Cause] = (),
    parts: Mapping[str, int] | None = None,
    clocks: Sequence[HostClock] = (),
    waits_across_hosts: Sequence[int] = (),
    refusals: Sequence[Refusal] = (),
    num_unmatched: int = 0,
    violations: Sequence[tuple[float, int]] = (),
    floor: float = 0.1,
    memory: Mapping[int, MemoryProfile] | None = None,
    problems: Sequence[str] = (),
    ranks: tuple[int, ...] = RANKS,
    world_size: int = 4,
    num_steps: int = 4,
    basis: str = "measured",
) -> Inputs:
    """A run of four ranks in steps of 1 ms in which nothing is lost but what the test says.

    ``parts``: ns per step on every rank; ``violations``: (MaxVio over ranks, hottest rank) of each interval.
    """
    schema = {"cause": pl.String, "culprit": pl.Int64, "layer": pl.Int32, "cost_ns": pl.Float64}
    table = pl.DataFrame(list(causes), schema, orient="row")
    table = table.with_columns(
        charged_ns=3 * pl.col("cost_ns"),
        transfer_ns=pl.when(pl.col("cause").is_in(["slow_network", "volume_imbalance"])).then("cost_ns").otherwise(0.0),
    )
    rows = [(rank, 0, part, ns) for rank in ranks for part, ns in (parts or {"compute.other": STEP_NS}).items()]
    attribution = Attribution(
        parts=pl.DataFrame(rows, {"rank": pl.Int64, "step": pl.Int64, "part": pl.String, "ns": pl.Int64}, orient="row"),
        charges=pl.DataFrame(),
        causes=table,
        work=pl.DataFrame(),
        row_costs={},
        timelines={},
        num_steps=num_steps,
        step_ns=float(STEP_NS),
    )
    rows_across = [("across hosts", ns) for ns in waits_across_hosts]
    across = pl.DataFrame(rows_across, {"tier": pl.String, "arrival_wait_ns": pl.Int64}, orient="row")
    intervals = pl.DataFrame(list(violations), {"maxvio_rank": pl.Float64, "hottest_rank": pl.Int64}, orient="row")
    return Inputs(
        basis=basis,
        world_size=world_size,
        ranks=ranks,
        alignment=Alignment(across, tuple(clocks), {}, tuple(refusals), num_unmatched),
        attribution=attribution,
        load_intervals=intervals,
        load_floor_rank=floor,
        load_source="telemetry",
        memory=memory or {},
        problems=problems,
    )
