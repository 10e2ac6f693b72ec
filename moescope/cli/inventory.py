"""A folder's inventory as text: what is there, what is damaged, and which questions that answers."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from moescope.cli.tables import new_table
from moescope.cli.text import console, printable, rank_names
from moescope.cli.verdict import title_line
from moescope.views.inventory import Inventory, TraceFacts
from moescope.views.questions import Question
from moescope.views.text import basis, count, duration, plural, ranges

MAX_TRACES, MAX_GROUPS, MAX_PROBLEMS = 12, 8, 10
_STYLES = {"yes": "green", "partly": "yellow", "no": "red"}


def print_inventory(inventory: Inventory, asked: Sequence[Question], out: Console | None = None) -> None:
    """Print ``inventory`` and the questions it answers, at most 100 columns wide."""
    out = console() if out is None else out
    for block in blocks(inventory, asked):
        out.print(block)


def blocks(inventory: Inventory, asked: Sequence[Question]) -> Iterator[RenderableType]:
    """Yield the parts of the page from top to bottom."""
    yield from heading(inventory)
    yield title_line("Traces")
    yield traces_table(inventory.traces)
    yield from hosts_and_groups(inventory)
    yield from telemetry_lines(inventory)
    yield from listed("Problems", inventory.problems)
    yield from listed("Notes", inventory.notes)
    yield title_line("What this answers")
    yield questions_table(asked)
    yield from recipes(asked)
    if any(trace.num_events for trace in inventory.traces):
        yield title_line("Next")
        yield Text(printable(f"moescope analyze {shlex.quote(inventory.path)}    the verdict"))


def heading(inventory: Inventory) -> Iterator[RenderableType]:
    """Yield what the folder is in two lines."""
    steps = sorted({step for trace in inventory.traces for step in trace.steps})
    num_ranks = len(inventory.ranks)
    world = inventory.world_size
    parts = [
        plural(num_ranks, "rank") if world in (None, num_ranks) else f"{num_ranks} of {world} ranks",
        plural(len(inventory.traces), "window"),
        plural(len(inventory.hosts), "host"),
        f"steps {ranges(steps)}" if steps else "no step marked",
        ", ".join(sorted({trace.device for trace in inventory.traces})[:3]),
        basis(inventory.basis),
    ]
    yield Text(printable(inventory.path), style="bold")
    yield Text(printable(" · ".join(parts)))
    for control in inventory.controls:
        yield Text(printable(f"Control: {control}"), style="yellow")


def traces_table(traces: Sequence[TraceFacts]) -> Table:
    """Return a row per trace of a small folder; of a large one the damaged and the first."""
    shown = list(traces)
    if len(shown) > MAX_TRACES:
        order = sorted(range(len(shown)), key=lambda i: (not shown[i].problems, i))[:MAX_TRACES]
        shown = [shown[i] for i in sorted(order)]
    table = new_table("rank", "win", "file", "events", "device", "span", "steps", "colls", "holds", left=(2, 8))
    for trace in shown:
        table.add_row(
            str(trace.rank),
            str(trace.window),
            printable(trace.file),
            count(trace.num_events),
            count(trace.num_device_events),
            duration(trace.end_ns - trace.start_ns),
            str(len(trace.steps)),
            count(trace.num_collectives),
            " ".join(recorded(trace)) or "-",
        )
    if len(shown) < len(traces):
        table.caption = Text(f"{len(shown)} of {len(traces)} windows: the damaged, then the first")
    return table


def recorded(trace: TraceFacts) -> list[str]:
    """Return the optional recordings a trace holds."""
    has = {
        "shapes": trace.has_shapes,
        "sizes": trace.sizes != "none",
        "splits": trace.has_splits,
        "memory": trace.has_memory,
        "ranges": trace.has_ranges,
    }
    return [name for name, there in has.items() if there]


def hosts_and_groups(inventory: Inventory) -> Iterator[RenderableType]:
    """Yield which ranks share a host, and the process groups."""
    yield title_line("Hosts")
    for host in inventory.hosts[:MAX_GROUPS]:
        yield Text(printable(f"{host.host or 'not named'}: {rank_names(host.ranks)}"))
    yield from _rest(len(inventory.hosts), MAX_GROUPS, "host")
    if inventory.groups:
        yield title_line("Process groups")
    for group in inventory.groups[:MAX_GROUPS]:
        name = f"{group.name} ({group.description})" if group.description else group.name
        members = (
            f"ranks {ranges(group.ranks)}, {group.num_present} with a trace" if group.ranks else "members not listed"
        )
        yield Text(printable(f"{name}: {members}"))
    yield from _rest(len(inventory.groups), MAX_GROUPS, "group")


def telemetry_lines(inventory: Inventory) -> Iterator[RenderableType]:
    """Yield what the hooks recorded."""
    yield title_line("Telemetry")
    if inventory.telemetry is None:
        yield Text("none: neither run.json nor telemetry/")
        return
    facts = inventory.telemetry
    rows = ", ".join(f"{name} {count(number)}" for name, number in facts.rows.items())
    steps = f"; steps {facts.steps[0]} to {facts.steps[1]}" if facts.steps else ""
    yield Text(printable(f"rows: {rows}{steps}; {rank_names(facts.ranks)}"))
    yield from (Text(printable(problem)) for problem in facts.problems[:MAX_PROBLEMS])
    yield from _rest(len(facts.problems), MAX_PROBLEMS, "problem")


def listed(title: str, lines: Sequence[str]) -> Iterator[RenderableType]:
    """Yield a section of lines, cut after a screenful; nothing where there are none."""
    if lines:
        yield title_line(title)
    yield from (Text(printable(line)) for line in lines[:MAX_PROBLEMS])
    yield from _rest(len(lines), MAX_PROBLEMS, title.lower().removesuffix("s"))


def questions_table(asked: Sequence[Question]) -> Table:
    """Return each question with its answer and the reason."""
    table = new_table("", "", "", left=(0, 1, 2))
    table.show_header = False
    for question in asked:
        answer = Text(question.answer, style=_STYLES[question.answer])
        table.add_row(answer, printable(question.question), printable(question.because))
    return table


def recipes(asked: Sequence[Question]) -> Iterator[RenderableType]:
    """Yield how to record what is lacking, each recipe once with the questions it answers."""
    by_recipe: dict[str, list[str]] = {}
    for question in asked:
        if question.how_to_record:
            by_recipe.setdefault(question.how_to_record, []).append(question.question)
    if by_recipe:
        yield title_line("To answer the rest")
    for recipe, answered in by_recipe.items():
        yield Text(printable(recipe))
        yield Padding(Text(printable(" ".join(answered)), style="dim"), (0, 0, 0, 3), expand=False)


def _rest(total: int, shown: int, noun: str) -> Iterator[RenderableType]:
    if total > shown:
        yield Text(f"and {plural(total - shown, 'further ' + noun)}: see --json")
