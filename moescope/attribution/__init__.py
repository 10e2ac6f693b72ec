"""Where every rank's step went, what made ranks late, and how loads and memory are spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from moescope.align import Alignment
from moescope.attribution.causes import summarise
from moescope.attribution.critical_path import CriticalPath, critical_path
from moescope.attribution.delays import charge_waits, excesses
from moescope.attribution.expert_work import RowCost, expected_ns, expert_work, row_costs, work_ns
from moescope.attribution.parts import rank_parts
from moescope.attribution.pipeline import replayed_costs
from moescope.attribution.profile import RankProfile, profile_rank
from moescope.attribution.spans import spans
from moescope.attribution.timeline import Timeline, timelines
from moescope.attribution.transfers import transfer_causes, transfer_losses

__all__ = ["Attribution", "CriticalPath", "RankProfile", "attribute", "profile_rank"]


@dataclass(frozen=True, slots=True)
class Attribution:
    """``parts``: ``rank, step, start_ns, window_ns, part, ns``. ``charges``: every wait's charges (``delays``).
    ``causes``: ``causes.summarise``. ``work``: ``expert_work``. All on the common clock."""

    parts: pl.DataFrame
    charges: pl.DataFrame
    causes: pl.DataFrame
    work: pl.DataFrame
    row_costs: Mapping[bool, RowCost]
    timelines: Mapping[int, Timeline]
    num_steps: int
    step_ns: float
    """Mean over steps of the longest rank's window."""
    path: CriticalPath | None = None
    """None where no collective ties the ranks together."""


def attribute(profiles: Sequence[RankProfile], alignment: Alignment) -> Attribution:
    """Attribute every rank's step."""
    lines = timelines(profiles, alignment)
    rows, spent = spans(alignment.collectives, lines)
    measured = work_ns(rows, spent, lines)
    work = expert_work(rows, measured)
    costs = row_costs(work)
    host_is_device = {rank: not line.on_gpu for rank, line in lines.items()}
    deviation = excesses(rows, spent, measured, expected_ns(rows, measured, costs), host_is_device)
    charges = charge_waits(rows, deviation, {rank: int(line.edges_ns[0]) for rank, line in lines.items()})
    parts = rank_parts(lines)
    windows = parts.group_by("step").agg(pl.col("window_ns").max())
    num_steps = max(len(windows), 1)
    losses = transfer_losses(rows, alignment.models, alignment.slow_links)
    transfers = transfer_causes(losses, num_steps)
    causes = summarise(charges, transfers, len(lines), num_steps, is_modelled=bool(alignment.models))
    mean_step = windows["window_ns"].mean()
    step_ns = float(mean_step) if isinstance(mean_step, int | float) else 0.0
    if rows["stage"].n_unique() > 1:
        causes = transfers = replayed_costs(causes, rows, lines, deviation, losses, num_steps=num_steps)
    path = critical_path(rows, spent, deviation, transfers, lines=lines, num_steps=num_steps)
    return Attribution(parts, charges, causes, work, costs, lines, num_steps, step_ns, path)
