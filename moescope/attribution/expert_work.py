"""Rows and time of every rank's expert work in every layer and microbatch, and the cost of a row.

The work stands between the exchange that brings the rows and the one that takes the results away: the combine
in the forward pass, the backward pass of the dispatch in the backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from moescope.align.frames import conform
from moescope.align.robust import lad_line
from moescope.attribution.timeline import Activity, Timeline

SCHEMA = {
    "instance": pl.Int64, "step": pl.Int64, "layer": pl.Int32, "microbatch": pl.Int32, "backward": pl.Boolean,
    "rank": pl.Int64, "rows": pl.Float64, "work_ns": pl.Float64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RowCost:
    """``time = fixed_ns + ns_per_row * rows`` for the expert work of one layer and microbatch in one direction."""

    fixed_ns: float
    ns_per_row: float
    residual_ns: float
    num_points: int


def expert_work(collectives: pl.DataFrame, timelines: Mapping[int, Timeline]) -> pl.DataFrame:
    """One row per layer, microbatch, direction and rank with the columns of SCHEMA.

    ``collectives``: ``Alignment.collectives``; ``timelines``: per rank.
    """
    takes = (pl.col("kind") == "all_to_all") & (
        ((pl.col("phase") == "combine") & ~pl.col("backward").fill_null(False))
        | ((pl.col("phase") == "dispatch") & pl.col("backward").fill_null(False))
    )
    exchanges = collectives.filter((pl.col("kind") == "all_to_all") & (pl.col("in_splits").list.len() > 0))
    before = exchanges.sort("rank", "start_ns").with_columns(
        previous_end_ns=pl.col("end_ns").shift(1).over("rank", "group")
    )
    work = before.filter(takes & pl.col("previous_end_ns").is_not_null())
    parts = [_of_rank(part, timelines[int(rank)]) for (rank,), part in work.group_by(["rank"], maintain_order=True)]
    return pl.concat(parts).sort("instance", "rank") if parts else pl.DataFrame(schema=SCHEMA)


def _of_rank(part: pl.DataFrame, timeline: Timeline) -> pl.DataFrame:
    low, high = part["previous_end_ns"].to_numpy(), part["start_ns"].to_numpy()
    spent = timeline.spent_ns(low, np.maximum(low, high))[:, Activity.TOKEN_WORK]
    sent = part["in_splits"].list.sum().cast(pl.Float64)
    columns = part.select("instance", "step", "layer", "microbatch", pl.col("backward").fill_null(False), "rank")
    return conform(columns.with_columns(rows=sent, work_ns=pl.Series(spent)), SCHEMA)


def row_costs(work: pl.DataFrame) -> dict[bool, RowCost]:
    """The cost of a row, forward (False) and backward (True), fitted over all ranks by least absolute deviations.

    A single slow rank does not move it: it is a minority of the points.
    """
    costs = {}
    for (backward,), part in work.filter(pl.col("work_ns") > 0).group_by(["backward"]):
        x, y = part["rows"].to_numpy(), part["work_ns"].to_numpy()
        if len(x) < 4 or np.ptp(x) <= 0.02 * max(x.max(), 1.0):
            continue
        line = lad_line(x, y)
        slope, fixed = max(line.slope, 0.0), line.intercept
        if fixed < 0 < x.sum():
            slope, fixed = float(np.median(y / np.maximum(x, 1))), 0.0
        residual = float(np.median(np.abs(y - fixed - slope * x)))
        costs[bool(backward)] = RowCost(fixed, slope, residual, len(x))
    return costs
