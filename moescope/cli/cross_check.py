"""A cross-check with another tool as text: our figures, what each of its rules changes, and its figures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from moescope.cli.tables import new_table
from moescope.cli.text import console, printable
from moescope.cli.verdict import title_line
from moescope.views.text import milliseconds, significant

if TYPE_CHECKING:
    from moescope.crosscheck.model import CrossCheck, FigureCheck, RankCheck

MOST_STREAMS = 8


def print_cross_check(check: CrossCheck, idle_ns: dict[int, dict[str, int]], out: Console | None = None) -> None:
    """Print ``check``; ``idle_ns``: our own idle parts by rank, summed over its steps."""
    out = console() if out is None else out
    out.print(title_line(f"Cross-check with {check.tool} {check.version}".rstrip()))
    for rank in check.ranks:
        for block in _rank(rank, idle_ns.get(rank.rank, {})):
            out.print(block)
    for text in check.skipped:
        out.print(Text(printable(f"Not checked: {text}.")))
    for note in check.notes:
        out.print(Text(printable(note), style="dim"))


def _rank(check: RankCheck, idle_ns: dict[str, int]) -> Iterator[RenderableType]:
    verdict = check.error or ("agrees: every difference is explained" if check.agrees else "differs: see unexplained")
    yield title_line(f"rank {check.rank}, {check.file}: {verdict}")
    if check.error:
        return
    table = new_table("ms, or %", "ours", *(f"{rule}" for rule in check.rules), "HTA", "unexplained")
    for figure in check.figures:
        changes = (_change(figure, rule) for rule in check.rules)
        table.add_row(
            figure.figure, _value(figure, figure.ours), *changes, _value(figure, figure.theirs),
            _value(figure, figure.unexplained),
        )  # fmt: skip
    yield table
    for rule, why in check.rules.items():
        yield Padding(Text(printable(f"{rule}: {why}")), (0, 0, 0, 3), expand=False)
    if check.idle or check.queue:
        yield _streams(check)
    if idle_ns:
        parts = ", ".join(f"{name.removeprefix('idle.')} {milliseconds(ns)}" for name, ns in idle_ns.items())
        yield Text(printable(f"Our idle over all streams, all steps, ms: {parts}"))
    if check.critical_path_percent:
        shares = ", ".join(f"{kind} {significant(share)} %" for kind, share in check.critical_path_percent.items())
        yield Text(printable(f"HTA's critical path of the first step: {shares}"))
    elif "critical_path" not in check.failed:
        yield Text("HTA finds no critical path here; it looks for marked steps.")
    for part, reason in check.failed.items():
        yield Text(printable(f"HTA could not compute {part}: {reason}"))


def _streams(check: RankCheck) -> RenderableType:
    streams = sorted({*(row.stream for row in check.idle), *(row.stream for row in check.queue)})
    kinds = ("host_wait", "kernel_wait", "other")
    idle = {(row.stream, row.kind): row for row in check.idle}
    queue = {row.stream: row for row in check.queue}
    table = new_table("stream", *(f"{kind}\nours/HTA, ms" for kind in kinds), "queue\nmean", "queue\nmost")
    for stream in streams[:MOST_STREAMS]:
        cells = []
        for kind in kinds:
            row = idle.get((stream, kind))
            cells.append(f"{milliseconds(row.ours_us * 1e3)}/{milliseconds(row.theirs_us * 1e3)}" if row else "0")
        own = queue.get(stream)
        pairs = ((own.ours_mean, own.theirs_mean), (own.ours_max, own.theirs_max)) if own else ((None, None),) * 2
        table.add_row(str(stream), *cells, *(f"{_number(ours)}/{_number(theirs)}" for ours, theirs in pairs))
    if len(streams) > MOST_STREAMS:
        table.caption = Text(f"{MOST_STREAMS} of {len(streams)} streams; all in --json")
    return table


def _number(value: float | None) -> str:
    return "–" if value is None else significant(value)


def _change(figure: FigureCheck, rule: str) -> str:
    if rule not in figure.changes:
        return "–"
    change = figure.changes[rule]
    return f"{'+' if change > 0 else ''}{_value(figure, change)}" if change else "0"


def _value(figure: FigureCheck, value: float | None) -> str:
    if value is None:
        return "–"
    return milliseconds(value * 1e3) if figure.unit == "us" else f"{value + 0.0:.2f} %".replace("-0.00", "0.00")
