"""A comparison of two runs as text."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from moescope.cli.tables import new_table
from moescope.cli.text import console, printable
from moescope.cli.verdict import title_line
from moescope.findings import Finding
from moescope.views.compare import Change, Comparison, Setting, Side
from moescope.views.text import duration, percent, plural, significant, size

MAX_SETTINGS, MAX_CHARACTERS = 20, 40
MANY_TIMES = 5.0
SMALL_SHARE_OF_STEP = 0.002
"""A part of the step below this share in both runs is left to ``--json``."""
_STYLES = {"better": "green", "worse": "red"}


def print_comparison(comparison: Comparison, out: Console | None = None) -> None:
    """Print ``comparison``, at most 100 columns wide."""
    out = console() if out is None else out
    for block in blocks(comparison):
        out.print(block)


def blocks(comparison: Comparison) -> Iterator[RenderableType]:
    """Yield the parts of the page from top to bottom."""
    yield from (side_line(letter, side) for letter, side in (("A", comparison.a), ("B", comparison.b)))
    yield title_line(summary(comparison))
    yield changes_table([change for change in comparison.changes if is_shown(change, comparison)])
    yield from finding_lines("New in B", comparison.new_findings)
    yield from finding_lines("Gone in B", comparison.gone_findings)
    if comparison.settings:
        yield title_line("Settings that differ")
        yield settings_table(comparison.settings[:MAX_SETTINGS])
    if len(comparison.settings) > MAX_SETTINGS:
        yield Text(f"and {len(comparison.settings) - MAX_SETTINGS} more: see --json")
    yield title_line("Next")
    paths = " ".join(shlex.quote(side.path) for side in (comparison.a, comparison.b))
    yield Text(printable(f"moescope compare {paths} --json    everything, for scripts"))


def side_line(letter: str, side: Side) -> RenderableType:
    """Return one run in a line."""
    facts = [plural(side.num_ranks, "rank"), plural(side.num_steps, "step"), f"basis: {side.basis}", *side.controls]
    return Text(printable(f"{letter}: {side.name}  {' · '.join(facts)}"))


def summary(comparison: Comparison) -> str:
    """Return the answer in a line: is B's step shorter, and is that more than noise?"""
    step = next((change for change in comparison.changes if change.metric == "step_ns"), None)
    if step is None or step.difference is None or step.relative is None:
        return "The runs share no step to compare."
    way = "longer" if step.difference > 0 else "shorter"
    noise = "no noise band: single steps" if step.noise is None else f"noise ±{duration(step.noise)}"
    change = "the same" if not step.difference else f"{duration(abs(step.difference))} {way} ({percent(step.relative)})"
    return f"B's step is {change}: {step.verdict}, {noise}"


def is_shown(change: Change, comparison: Comparison) -> bool:
    """Return whether a figure is large enough for the table."""
    if not change.metric.startswith("part_ns:"):
        return True
    step = next((other for other in comparison.changes if other.metric == "step_ns"), None)
    whole = max(step.a or 0, step.b or 0) if step is not None else 0
    return max(change.a or 0, change.b or 0) >= SMALL_SHARE_OF_STEP * whole


def value_text(metric: str, value: float | None) -> str:
    """Return a value in the unit its metric's name states."""
    if value is None:
        return "–"
    if metric.endswith("_ns") or metric.startswith("part_ns:"):
        return duration(round(value))
    return size(value) if metric.endswith("_bytes") else significant(value)


def relative_text(relative: float) -> str:
    """Return a relative difference in percent, and as a multiple where percents stop being readable."""
    return percent(relative) if relative < MANY_TIMES - 1 else f"{significant(relative + 1)}×"


def changes_table(changes: Sequence[Change]) -> Table:
    """Return a row per figure."""
    table = new_table("", "A", "B", "B - A", "", "noise", "", left=(0, 6))
    for change in changes:
        name = change.metric.removeprefix("part_ns:").removesuffix("_ns").removesuffix("_bytes").replace("_", " ")
        values = (value_text(change.metric, value) for value in (change.a, change.b, change.difference))
        noise = "" if change.noise is None else f"±{value_text(change.metric, change.noise)}"
        relative = "" if change.relative is None else relative_text(change.relative)
        verdict = Text(change.verdict, style=_STYLES.get(change.verdict, "default"))
        table.add_row(printable(name), *values, relative, noise, verdict)
    return table


def finding_lines(title: str, findings: Sequence[Finding]) -> Iterator[RenderableType]:
    """Yield a line per finding, nothing where there are none."""
    if findings:
        yield title_line(title)
    for finding in findings:
        yield Text(printable(f"{finding.code} ({finding.severity}): {finding.claim}"))


def settings_table(settings: Sequence[Setting]) -> Table:
    """Return the settings with both values, long ones cut."""
    table = new_table("", "A", "B", left=(0, 1, 2))
    for setting in settings:
        table.add_row(printable(setting.name), *(_cut(value) for value in (setting.a, setting.b)))
    return table


def _cut(value: object) -> str:
    text = "–" if value is None else value if isinstance(value, str) else json.dumps(value)
    return printable(text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 3]}...")
