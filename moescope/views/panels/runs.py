"""Several runs side by side: one row each."""

from __future__ import annotations

from collections.abc import Sequence

from moescope.views import palette
from moescope.views.model import Analysis
from moescope.views.panels import Column, Panel, Table, mean, step_ns
from moescope.views.panels.step import NO_STEPS, rank_parts
from moescope.views.text import duration

FAMILIES = (("compute", "compute."), ("exposed communication", "comm."), ("idle", "idle."))


def mean_groups_ns(analysis: Analysis) -> dict[str, float]:
    """Time of each palette group per step, mean over ranks and steps."""
    rows = rank_parts(analysis)
    return {group.key: mean(row.groups_ns[group.key] for row in rows) for group in palette.GROUPS}


def runs_panel(analyses: Sequence[Analysis]) -> Panel:
    """Step, its families of parts, balance and first finding of every run."""
    key, title, question = "runs", "All served runs", "Which run has the shortest step, and what is it spent on?"
    if not any(analysis.steps for analysis in analyses):
        return Panel(key, title, question, empty=NO_STEPS)
    columns = (
        Column("run"),
        Column("basis"),
        Column("ranks", "count"),
        Column("step", "duration"),
        *(Column(f"{name}, of the step", "percent") for name, _ in FAMILIES),
        Column("MaxVio of ranks", "ratio"),
        Column("first finding"),
    )
    rows = []
    for one in analyses:
        parts = rank_parts(one)
        window = mean(row.window_ns for row in parts)
        shares = [
            mean(sum(ns for part, ns in row.parts_ns.items() if part.startswith(prefix)) for row in parts) / window
            if window
            else None
            for _, prefix in FAMILIES
        ]
        claim = one.findings[0].claim if one.findings else None
        balance = one.load.maxvio_rank if one.load else None
        rows.append((one.name, one.basis, len(parts), step_ns(one) if one.steps else None, *shares, balance, claim))
    timed = [one for one in analyses if one.steps]
    best, worst = min(timed, key=step_ns), max(timed, key=step_ns)
    reading = f"The shortest step is that of {best.name}, {duration(step_ns(best))}; "
    reading += f"the longest that of {worst.name}, {duration(step_ns(worst))}."
    return Panel(key, title, question, reading, (Table("runs", columns, tuple(rows)),))
