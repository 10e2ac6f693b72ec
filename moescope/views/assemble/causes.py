"""Waits and causes into the dataclasses of the view model."""

from __future__ import annotations

import numpy as np
import polars as pl

from moescope.align import Alignment
from moescope.align.robust import MAD_TO_SIGMA
from moescope.attribution import Attribution
from moescope.views.model import Cause, Wait, WaitEdge
from moescope.views.model.path import CriticalPath, PathCause, PathRank

SPLIT_BY_ROWS = ("expert_load", "slow_rank")
"""Causes told apart by the fitted cost of a row."""
MIN_PATH_SHARE = 0.001
"""Causes with a smaller share of the step are left out of the path's."""


def waits(alignment: Alignment) -> tuple[Wait, ...]:
    """Per rank, step and kind of collective."""
    table = alignment.collectives.group_by("rank", "step", "kind").agg(
        pl.col("arrival_wait_ns").sum(),
        pl.col("removable_wait_ns").sum(),
        pl.col("transfer_ns").sum(),
        times_last=pl.col("is_last").sum().cast(pl.Int64),
        uncertainty_ns=pl.col("clock_uncertainty_ns").sum(),
    )
    table = table.with_columns(pl.col("step").fill_null(-1)).sort("step", "rank", "kind")
    return tuple(Wait(**row) for row in table.iter_rows(named=True))


def wait_edges(alignment: Alignment, num_steps: int) -> tuple[WaitEdge, ...]:
    """Who waited for whom."""
    table = (
        alignment.collectives.filter(pl.col("late_rank").is_not_null() & (pl.col("arrival_wait_ns") > 0))
        .group_by("rank", "late_rank")
        .agg(pl.col("arrival_wait_ns").sum())
        .sort("rank", "late_rank")
    )
    return tuple(WaitEdge(waiter, late, round(wait / num_steps)) for waiter, late, wait in table.rows())


def causes(attribution: Attribution, alignment: Alignment) -> tuple[Cause, ...]:
    """What made ranks wait, largest cost first. Charged waits are whole ns and sum to the waits per step."""
    table = attribution.causes
    charged = _whole(table["charged_ns"].to_list())
    clocks = _clock_uncertainty(alignment, attribution.num_steps)
    fits = {kind: _fit_uncertainty(alignment, attribution, kind) for kind in ("transfers", "rows")}
    return tuple(
        Cause(
            cause=cause,
            rank=culprit,
            layer=layer,
            cost_ns_per_step=round(cost),
            share_of_step=cost / attribution.step_ns if attribution.step_ns else 0.0,
            uncertainty_ns=min(round(cost), clocks + round(fits["rows" if cause in SPLIT_BY_ROWS else "transfers"])),
            charged_wait_ns_per_step=whole,
        )
        for (cause, culprit, layer, cost), whole in zip(
            table.select("cause", "culprit", "layer", "cost_ns").rows(), charged, strict=True
        )
    )


def critical_path(attribution: Attribution) -> CriticalPath | None:
    """The step's critical path; None without collectives."""
    path, step_ns = attribution.path, attribution.step_ns
    if path is None or step_ns <= 0:
        return None
    ranks = sorted(path.ranks_ns.items(), key=lambda item: -item[1])
    causes = sorted(path.causes_ns.items(), key=lambda item: -item[1])
    return CriticalPath(
        length_ns=round(path.length_ns),
        parts_ns=dict(zip(path.parts_ns, _whole(list(path.parts_ns.values())), strict=True)),
        ranks=tuple(PathRank(rank, round(ns), ns / step_ns) for rank, ns in ranks),
        causes=tuple(
            PathCause(cause, rank, round(ns), ns / step_ns)
            for (cause, rank), ns in causes
            if ns >= MIN_PATH_SHARE * step_ns
        ),
        changes_per_step=path.num_changes,
    )


def _fit_uncertainty(alignment: Alignment, attribution: Attribution, kind: str) -> float:
    """What the scatter around the fits adds up to in one step (one standard deviation), ns.

    ``transfers``: of the undisturbed durations of a step's all-to-alls, behind removable waits; ``rows``: also of the
    cost of a row, by which tokens are told from hardware. Scatter of single collectives adds up in squares.
    """
    exchanges = alignment.collectives.filter(pl.col("kind") == "all_to_all")
    counts = dict(exchanges.group_by("tier").agg(pl.col("instance").n_unique()).rows())
    square = sum(counts.get(tier, 0) * model.residual_ns**2 for tier, model in alignment.models.items())
    if kind == "rows":
        works = dict(attribution.work.group_by("backward").agg(pl.col("instance").n_unique()).rows())
        square += sum(works.get(way, 0) * cost.residual_ns**2 for way, cost in attribution.row_costs.items())
    return MAD_TO_SIGMA * float(np.sqrt(square / attribution.num_steps))


def _clock_uncertainty(alignment: Alignment, num_steps: int) -> int:
    """What the clocks' uncertainty can add up to in one step, if every collective across hosts is off the same way."""
    across = alignment.collectives.filter(pl.col("tier") == "across hosts")
    if across.is_empty():
        return 0
    return (
        int(across.group_by("instance").agg(pl.col("clock_uncertainty_ns").max())["clock_uncertainty_ns"].sum())
        // num_steps
    )


def _whole(values: list[float]) -> list[int]:
    """Rounded to integers whose sum is the rounded sum: the largest remainders are rounded up."""
    floors = [int(value // 1) for value in values]
    short = round(sum(values)) - sum(floors)
    by_remainder = sorted(range(len(values)), key=lambda index: values[index] - floors[index], reverse=True)
    for index in by_remainder[:short]:
        floors[index] += 1
    return floors
