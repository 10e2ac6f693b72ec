"""Panels about two runs side by side: the values of :mod:`moescope.views.compare`, each with its noise band."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from moescope.views.compare import Change, Comparison
from moescope.views.compare.text import is_shown, metric_name, summary
from moescope.views.model import Json
from moescope.views.panels import Cell, Column, Empty, Panel, Table
from moescope.views.text import duration, plural

MOST_CHARACTERS = 300
"""Of one setting's value."""
PARTS = "part_ns:"
NO_BAND = "Single steps have no noise band: record two or more profiled steps in both runs."
NO_FIGURES = Empty(
    "Neither run has load, memory or rates to compare.",
    "Train inside moescope_hooks.observe(model, out=RUN), and record with profile_memory=True.",
)
NO_TIMES = Empty(
    "Neither run has a profiled step.",
    "Call profiler.step() once per training step, or record with moescope train --profile.",
)


def is_time(metric: str) -> bool:
    """Whether the figure is a duration."""
    return metric.startswith(PARTS) or metric.endswith("_ns")


def sides_panel(comparison: Comparison) -> Panel:
    """The parts of the step of both runs."""
    key, title, question = "sides", "Parts of the step", "Where does each run's step go?"
    parts = [c for c in comparison.changes if c.metric.startswith(PARTS)]
    if not parts:
        return Panel(key, title, question, empty=NO_TIMES)
    columns = (Column("part"), Column("A", "ms"), Column("B", "ms"))
    rows = tuple((c.metric.removeprefix(PARTS), c.a, c.b) for c in parts)
    caption = "Milliseconds per step, mean over ranks and steps; the parts of a run sum to its mean window."
    return Panel(key, title, question, summary(comparison) + ".", (Table("sides", columns, rows, caption),))


def time_changes(comparison: Comparison) -> list[Change]:
    """Durations large enough to show: the step, its parts, waits."""
    return [c for c in comparison.changes if is_time(c.metric) and is_shown(c, comparison)]


def times_panel(comparison: Comparison) -> Panel:
    """The step, its parts and waits of both runs."""
    key, title, question = (
        "times",
        "Step, parts and waits",
        "Which part of the step changed, and is it more than noise?",
    )
    changes = time_changes(comparison)
    if not changes:
        return Panel(key, title, question, empty=NO_TIMES)
    columns = (Column("per step"), *(Column(name, "ms") for name in ("A", "B", "B - A")), *_ends("ms"))
    rows = tuple(
        (metric_name(c.metric), c.a, c.b, c.difference, c.relative, c.noise, c.verdict) for c in changes
    )  # fmt: skip
    caption = "Milliseconds, mean over ranks and steps; noise is half the width of the band between steps."
    notes = (NO_BAND,) if any(c.metric == "step_ns" and c.noise is None for c in changes) else ()
    table = Table("times", columns, rows, caption)
    return Panel(key, title, question, _times_reading(changes), (table,), notes=notes)


def _times_reading(changes: Sequence[Change]) -> str:
    parts = [c for c in changes if c.metric.startswith(PARTS) and c.difference and c.verdict != "within noise"]
    if not parts:
        return "No part of the step changed by more than noise."
    most = max(parts, key=lambda c: abs(c.difference or 0.0))
    way = "longer" if (most.difference or 0.0) > 0 else "shorter"
    return f"Most of all changed {metric_name(most.metric)}: {duration(abs(most.difference or 0.0))} {way} in B."


def _ends(kind: str) -> tuple[Column, ...]:
    return Column("relative", "percent"), Column("noise ±", kind), Column("verdict")


def figures_panel(comparison: Comparison) -> Panel:
    """Load, memory, rates and results of both runs."""
    key, title, question = "figures", "Load, memory and rates", "Did throughput, balance or memory change?"
    changes = [c for c in comparison.changes if not is_time(c.metric)]
    if not changes:
        return Panel(key, title, question, empty=NO_FIGURES)
    tables = []
    for name, kind, chosen in (
        ("figures", "figure", [c for c in changes if not c.metric.endswith("_bytes")]),
        ("bytes", "bytes", [c for c in changes if c.metric.endswith("_bytes")]),
    ):
        if chosen:
            columns = (Column("figure"), *(Column(side, kind) for side in ("A", "B", "B - A")), *_ends(kind))
            rows = tuple((metric_name(c.metric), c.a, c.b, c.difference, c.relative, c.noise, c.verdict)
                         for c in chosen)  # fmt: skip
            tables.append(Table(name, columns, rows))
    return Panel(key, title, question, _figures_reading(changes), tuple(tables))


def _figures_reading(changes: Sequence[Change]) -> str:
    both = [c for c in changes if c.difference is not None]
    by_verdict = {verdict: [c for c in both if c.verdict == verdict] for verdict in ("worse", "better")}
    texts = [
        f"{verdict}: {', '.join(metric_name(c.metric) for c in chosen)}"
        for verdict, chosen in by_verdict.items()
        if chosen
    ]
    counted = f"{plural(len(both), 'figure')} in both runs"
    return f"{counted}; in B {'; '.join(texts)}." if texts else f"{counted}; none is better or worse in B."


def verdicts_panel(comparison: Comparison) -> Panel:
    """Findings that only one of the runs has."""
    key, title, question = "findings", "Findings that differ", "Which finding came, and which went?"
    pairs = (("new in B", comparison.new_findings), ("gone in B", comparison.gone_findings))
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (where, f.severity, f.code, f.rank, f.cost_ns_per_step, f.claim) for where, found in pairs for f in found
    )
    if not rows:
        return Panel(key, title, question, empty=Empty("Both runs have the same findings on the same ranks.", ""))
    columns = (
        Column("where"),
        Column("severity"),
        Column("code"),
        Column("rank", "id"),
        Column("cost per step", "duration"),
        Column("claim"),
    )
    reading = f"{len(comparison.new_findings)} new in B, {len(comparison.gone_findings)} gone."
    return Panel(key, title, question, reading, (Table("findings", columns, rows),))


def settings_panel(comparison: Comparison) -> Panel:
    """Values of run.json that differ."""
    key, title, question = "settings", "Settings that differ", "What was run differently?"
    if not comparison.settings:
        empty = Empty("Nothing in the two run.json differs, or neither run has one.", "")
        return Panel(key, title, question, empty=empty)
    columns = (Column("setting"), Column("A"), Column("B"))
    rows = tuple((s.name, _brief(s.a), _brief(s.b)) for s in comparison.settings)
    reading = f"{plural(len(rows), 'value')} of run.json not the same in both runs."
    return Panel(key, title, question, reading, (Table("settings", columns, rows),))


def _brief(value: Json) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"


COMPARE_PANELS: Mapping[str, Callable[[Comparison], Panel]] = {
    "sides": sides_panel,
    "times": times_panel,
    "figures": figures_panel,
    "findings": verdicts_panel,
    "settings": settings_panel,
}
"""Panel key -> the function that fills it from a comparison."""
