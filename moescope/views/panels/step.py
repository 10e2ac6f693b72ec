"""Panels about the step: its parts on every rank, what caused the waits, the steps of the run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from moescope.views import palette
from moescope.views.model import Analysis, RankStep
from moescope.views.panels import Cell, Column, Empty, Panel, Table, mean, step_ns
from moescope.views.text import duration, percent, plural, ranges, ratio, significant

NO_STEPS = Empty(
    "No profiled training step was found in the traces (ProfilerStep ranges or device events).",
    "Call profiler.step() once per training step, or record with moescope train --profile.",
)
CAUSES = {
    "expert_load": "the expert load",
    "slow_rank": "the slowness at equal load",
    "slow_network": "the network",
    "volume_imbalance": "the uneven volume",
    "small_gemm": "the small matrix products",
    "host": "the host",
    "memory": "the memory operations",
    "upstream_wait": "the earlier waiting",
    "pipeline": "the pipeline's stages",
    "unexplained": "the unexplained lateness",
}
"""Cause -> how a sentence names it, before ``of rank 3``."""


@dataclass(frozen=True, slots=True)
class RankParts:
    """One rank's step, as a mean over the chosen steps."""

    rank: int
    host: str
    device: str
    window_ns: float
    parts_ns: Mapping[str, float]
    groups_ns: Mapping[str, float]
    """By :attr:`~moescope.views.palette.PartGroup.key`, in drawing order."""


def rank_parts(analysis: Analysis, step: int | None = None) -> list[RankParts]:
    """Mean parts per rank over all profiled steps, or those of one ``step``."""
    by_rank: dict[int, list[RankStep]] = defaultdict(list)
    for row in analysis.ranks:
        if step is None or row.step == step:
            by_rank[row.rank].append(row)
    return [_mean_parts(by_rank[rank]) for rank in sorted(by_rank)]


def _mean_parts(steps: list[RankStep]) -> RankParts:
    sums: dict[str, float] = defaultdict(float)
    for row in steps:
        for part, value in row.parts_ns.items():
            sums[part] += value
    parts = {part: sums[part] / len(steps) for part in sorted(sums)}
    first, window = steps[0], mean(row.window_ns for row in steps)
    return RankParts(first.rank, first.host, first.device, window, parts, palette.grouped(parts))


def used_groups(rows: list[RankParts]) -> list[palette.PartGroup]:
    """The groups that hold any time on any rank, in drawing order."""
    return [group for group in palette.GROUPS if any(row.groups_ns[group.key] for row in rows)]


def _family(row: RankParts, prefix: str) -> float:
    return sum(value for part, value in row.parts_ns.items() if part.startswith(prefix))


def _waiting(row: RankParts) -> float:
    return sum(value for part, value in row.parts_ns.items() if ".wait_" in part)


def _parts_reading(rows: list[RankParts], window: float) -> str:
    busiest = max(rows, key=lambda row: _family(row, "compute."))
    waiter = max(rows, key=_waiting)
    compute, waiting = _family(busiest, "compute."), _waiting(waiter)
    text = f"A step takes {duration(window)}. Rank {busiest.rank} computes longest, {duration(compute)}"
    if not waiting:
        return f"{text}; no rank waits for another."
    return f"{text}; rank {waiter.rank} waits longest for others, {duration(waiting)} ({percent(waiting / window)})."


def parts_panel(analysis: Analysis, step: int | None = None) -> Panel:
    """Where every rank's step goes."""
    key, title = "parts", "Parts of the step"
    question = "Where does each rank's step go?"
    rows = rank_parts(analysis, step)
    if not rows:
        return Panel(key, title, question, empty=NO_STEPS)
    names = sorted({part for row in rows for part, value in row.parts_ns.items() if value})
    columns = (Column("rank", "id"), Column("host"), Column("step", "ms"), *(Column(n, "ms") for n in names))
    body: tuple[tuple[Cell, ...], ...] = tuple(
        (row.rank, row.host, row.window_ns, *(row.parts_ns.get(name, 0) for name in names)) for row in rows
    )
    table = Table("parts", columns, body, "Milliseconds per step; the parts of a rank sum to its step.")
    return Panel(key, title, question, _parts_reading(rows, step_ns(analysis, step)), (table,))


def causes_panel(analysis: Analysis) -> Panel:
    """What made ranks wait, with its cost."""
    key, title, question = "causes", "Causes of waiting", "Which rank and layer made the others wait, and why?"
    if not analysis.causes:
        empty = Empty(
            "No wait could be charged to a cause: that takes collectives matched across at least two ranks.",
            "Record the traces of all ranks over the same steps.",
        )
        return Panel(key, title, question, empty=empty)
    causes = sorted(analysis.causes, key=lambda c: -c.cost_ns_per_step)
    columns = (
        Column("cause"),
        Column("rank", "id"),
        Column("layer", "id"),
        Column("cost per step", "duration"),
        Column("of the step", "percent"),
        Column("uncertainty", "duration"),
        Column("waits charged, all ranks", "duration"),
    )
    rows = tuple(
        (c.cause.replace("_", " "), c.rank, c.layer, c.cost_ns_per_step, c.share_of_step, c.uncertainty_ns,
         c.charged_wait_ns_per_step)
        for c in causes
    )  # fmt: skip
    first = causes[0]
    where = "" if first.rank is None else f" of rank {first.rank}"
    where += "" if first.layer is None else f", layer {first.layer}"
    reading = (
        f"The costliest cause is {CAUSES.get(first.cause, first.cause.replace('_', ' '))}{where}: "
        f"{duration(first.cost_ns_per_step)} per step ({percent(first.share_of_step)})."
    )
    return Panel(key, title, question, reading, (Table("causes", columns, rows),))


def steps_panel(analysis: Analysis) -> Panel:
    """The run's steps as the hooks recorded them, profiled or not."""
    key, title, question = "steps", "Steps of the run", "Is the profiled step a typical one?"
    steps = analysis.telemetry
    if not steps:
        empty = Empty(
            "There is no telemetry of the run's steps (step time, tokens, loss, gradient norm).",
            "Train inside moescope_hooks.observe(model, out=RUN) and call obs.step() once per step.",
        )
        return Panel(key, title, question, empty=empty)
    columns = (
        Column("step", "id"),
        Column("profiled"),
        Column("duration", "ms"),
        Column("tokens", "count"),
        Column("tokens per s", "count"),
        Column("loss", "ratio"),
        Column("gradient norm", "ratio"),
        Column("MaxVio of ranks", "ratio"),
    )
    rows = tuple(
        (s.step, "yes" if s.profiled else "", s.duration_ns, s.tokens, _rate(s.tokens, s.duration_ns), s.loss,
         s.gradient_norm, s.maxvio_rank)
        for s in steps
    )  # fmt: skip
    typical = sorted(s.duration_ns for s in steps)[len(steps) // 2]
    slowest = max(steps, key=lambda s: s.duration_ns)
    profiled = [s.step for s in steps if s.profiled]
    reading = (
        f"{plural(len(steps), 'step')}, {duration(typical)} at the median; "
        f"slowest is step {slowest.step} ({duration(slowest.duration_ns)})."
    )
    losses = [s for s in steps if s.loss is not None]
    if len(losses) > 1:
        reading += f" Loss goes from {ratio(losses[0].loss)} to {ratio(losses[-1].loss)}."
    reading += f" Profiled: {ranges(profiled)}." if profiled else " None of them was profiled."
    return Panel(key, title, question, reading, (Table("steps", columns, rows),))


def _rate(tokens: int, duration_ns: int) -> float | None:
    return tokens / duration_ns * 1e9 if duration_ns else None


def headline(analysis: Analysis) -> list[tuple[str, str]]:
    """The run in a few labelled figures: (label, value)."""
    hosts = {source.host for source in analysis.sources}
    devices = sorted({source.device for source in analysis.sources})
    recorded = {source.rank for source in analysis.sources}
    facts = [("Step", duration(step_ns(analysis)) if analysis.steps else "–")]
    if analysis.ranks:
        rows = rank_parts(analysis)
        window = mean(row.window_ns for row in rows) or 1
        for label, prefix in (("Compute", "compute."), ("Exposed communication", "comm."), ("Idle", "idle.")):
            facts.append((label, percent(mean(_family(row, prefix) for row in rows) / window)))
    if analysis.load:
        facts.append(("MaxVio of ranks", f"{significant(analysis.load.maxvio_rank)}"))
    total = max(analysis.world_size, len(recorded))
    facts.append(("Ranks", f"{len(recorded)}" if len(recorded) == total else f"{len(recorded)} of {total}"))
    facts.append(("Hosts", str(len(hosts))))
    facts.append(("Device", devices[0] if len(devices) == 1 else plural(len(devices), "kind")))
    return facts
