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
from moescope.attribution.timeline import Activity, FloatArray, Timeline

MIN_POINTS = 4
EVEN_SHARE = 0.02
"""Rows that spread by less than this share of the largest count as equal."""

SCHEMA = {
    "instance": pl.Int64, "step": pl.Int64, "layer": pl.Int32, "microbatch": pl.Int32, "backward": pl.Boolean,
    "turn": pl.Int64, "rank": pl.Int64, "rows": pl.Float64, "work_ns": pl.Float64, "complete": pl.Boolean,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RowCost:
    """``time = fixed_ns + ns_per_row * rows`` for the expert work of one layer and microbatch in one direction."""

    fixed_ns: float
    ns_per_row: float
    residual_ns: float
    num_points: int


def work_ns(rows: pl.DataFrame, spent: FloatArray, timelines: Mapping[int, Timeline]) -> FloatArray:
    """Time of work in each row's span, [len(rows)]: compute; on a host-only trace the host's own time between
    operations too, since there the host is the device."""
    host_only = rows["rank"].replace_strict(
        {rank: not line.on_gpu for rank, line in timelines.items()}, return_dtype=pl.Boolean
    )
    compute = spent[:, Activity.TOKEN_WORK] + spent[:, Activity.OTHER_COMPUTE]
    return np.where(host_only.to_numpy(), compute + spent[:, Activity.HOST], compute)


def expert_work(rows: pl.DataFrame, work: FloatArray) -> pl.DataFrame:
    """One row per layer, microbatch, direction and rank with the columns of SCHEMA; ``complete``: all ranks are there.

    ``rows``: ``spans.spans``; ``work``: ``work_ns``.
    """
    table = rows.with_columns(
        work_ns=pl.Series(work), rows="rows_processed", backward=pl.col("backward").fill_null(False)
    )
    table = table.filter(pl.col("is_expert_work") & pl.col("rows").is_not_null())
    return conform(table, SCHEMA).sort("instance", "rank")


def row_costs(work: pl.DataFrame) -> dict[bool, RowCost]:
    """The cost of a row, forward (False) and backward (True), fitted over all ranks by least absolute deviations.

    A single slow rank does not move it: it is a minority of the points. Rows that hardly differ tell no slope, and need
    none: the line through zero and the median then expects the same of every rank.
    """
    costs = {}
    for (backward,), part in work.filter(pl.col("work_ns") > 0).group_by(["backward"]):
        x, y = part["rows"].to_numpy(), part["work_ns"].to_numpy()
        is_even = np.ptp(x) <= EVEN_SHARE * max(x.max(), 1.0)
        if len(x) < MIN_POINTS and not is_even:
            continue
        slope, fixed = float(np.median(y / np.maximum(x, 1))), 0.0
        if not is_even and (line := lad_line(x, y)).intercept >= 0:
            slope, fixed = max(line.slope, 0.0), line.intercept
        residual = float(np.median(np.abs(y - fixed - slope * x)))
        costs[bool(backward)] = RowCost(fixed, slope, residual, len(x))
    return costs


def expected_ns(rows: pl.DataFrame, work: FloatArray, costs: Mapping[bool, RowCost]) -> FloatArray:
    """What each row's expert work should take at the fitted cost of a row, [len(rows)]; ``work`` without one."""
    processed = rows["rows_processed"].cast(pl.Float64).to_numpy()
    backward = rows["backward"].fill_null(False).to_numpy()
    expected = work.copy()
    for direction, cost in costs.items():
        mine = (backward == direction) & ~np.isnan(processed)
        expected[mine] = cost.fixed_ns + cost.ns_per_row * processed[mine]
    return expected
