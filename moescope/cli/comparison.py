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
from moescope.views.compare.text import MISFIT, is_shown, metric_name, relative_text, summary, value_text
from moescope.views.text import basis, plural

MAX_SETTINGS, MAX_CHARACTERS = 20, 40
_STYLES = {"better": "green", "worse": "red"}


def print_comparison(comparison: Comparison, out: Console | None = None) -> None:
    """Print ``comparison``, at most 100 columns wide."""
    out = console() if out is None else out
    for block in blocks(comparison):
        out.print(block)


def blocks(comparison: Comparison) -> Iterator[RenderableType]:
    """Yield the parts of the page from top to bottom."""
    yield from (side_line(letter, side) for letter, side in (("A", comparison.a), ("B", comparison.b)))
    if comparison.misfits:
        yield Text(printable(f"{MISFIT} {' '.join(comparison.misfits)}"), style="bold yellow")
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
    facts = [plural(side.num_ranks, "rank"), plural(side.num_steps, "step"), basis(side.basis), *side.controls]
    return Text(printable(f"{letter}: {side.name}  {' · '.join(facts)}"))


def changes_table(changes: Sequence[Change]) -> Table:
    """Return a row per figure."""
    table = new_table("", "A", "B", "B - A", "", "noise", "", left=(0, 6))
    for change in changes:
        values = (value_text(change.metric, value) for value in (change.a, change.b, change.difference))
        noise = "" if change.noise is None else f"±{value_text(change.metric, change.noise)}"
        relative = "" if change.relative is None else relative_text(change.relative)
        verdict = Text(change.verdict, style=_STYLES.get(change.verdict, "default"))
        table.add_row(printable(metric_name(change.metric)), *values, relative, noise, verdict)
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
