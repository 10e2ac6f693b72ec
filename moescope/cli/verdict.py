"""The analysis as text: the verdict first, then the numbers it rests on, then the next useful command."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from moescope.cli.tables import clock_table, load_table, parts_table, path_table, waits_table
from moescope.cli.text import console, printable, rank_names
from moescope.findings import Finding
from moescope.findings.scale import NOTICEABLE
from moescope.views.links import moment_text, numbers
from moescope.views.model import Analysis
from moescope.views.panels import step_ns
from moescope.views.panels.memory import tokens_panel
from moescope.views.text import basis, duration, percent, plural, ratio, size

MAX_FINDINGS = 5
MAX_OPERATIONS = 3
_STYLES = {"critical": "bold red", "warning": "yellow", "info": "cyan", "good": "green"}


def print_analysis(analysis: Analysis, out: Console | None = None, *, explain: bool = False) -> None:
    """Print ``analysis`` as a person reads it, at most 100 columns wide; ``explain`` adds the findings' evidence."""
    out = console() if out is None else out
    for block in blocks(analysis, explain=explain):
        out.print(block, soft_wrap=False)


def blocks(analysis: Analysis, *, explain: bool = False) -> Iterator[RenderableType]:
    """Yield the parts of the page from top to bottom."""
    yield from heading(analysis)
    yield from verdict(analysis, explain=explain)
    for title, table in (
        ("Step by rank, ms per step", parts_table(analysis)),
        ("Waits, ms per step", waits_table(analysis)),
        ("Critical path across ranks", path_table(analysis)),
        ("Clocks", clock_table(analysis)),
        (load_title(analysis), load_table(analysis)),
    ):
        if table is not None:
            yield title_line(title)
            yield table
    yield from memory_lines(analysis)
    yield from host_lines(analysis)
    yield from missing_lines(analysis)
    yield from next_lines(analysis)


def heading(analysis: Analysis) -> Iterator[RenderableType]:
    """Yield what was analysed, and what was done to it on purpose."""
    ranks = sorted({source.rank for source in analysis.sources})
    hosts = {source.host for source in analysis.sources}
    devices = sorted({source.device for source in analysis.sources})
    of_world = f" of {analysis.world_size}" if analysis.world_size > len(ranks) else ""
    parts = [
        f"{len(ranks)}{of_world} ranks" if of_world else plural(len(ranks), "rank"),
        plural(len(hosts), "host"),
        plural(len(analysis.steps), "step") + (f" of {duration(step_ns(analysis))}" if analysis.steps else ""),
        ", ".join(devices[:3]) + (", ..." if len(devices) > 3 else ""),
        basis(analysis.basis),
    ]
    yield Text(printable(analysis.name), style="bold")
    yield Text(printable(" · ".join(part for part in parts if part)))
    for control in analysis.controls:
        yield Text(printable(f"Control: {control}"), style="yellow")


def title_line(title: str) -> RenderableType:
    """Return the heading of a section, with a blank line above."""
    return Text(f"\n{printable(title)}", style="bold")


def verdict(analysis: Analysis, *, explain: bool = False) -> Iterator[RenderableType]:
    """Yield up to five findings: claim, cost, confidence and what to try; all of them with evidence to ``explain``."""
    yield title_line("Verdict")
    if not analysis.findings:
        yield Text("No finding: nothing in this input supports one. See what is missing below.")
    shown = analysis.findings if explain else analysis.findings[:MAX_FINDINGS]
    for number, finding in enumerate(shown, start=1):
        yield from finding_lines(number, finding)
        if explain:
            yield from evidence_lines(analysis, finding)
    yield from unexplained_lines(analysis)
    more = len(analysis.findings) - len(shown)
    if more > 0:
        yield Text(f"and {plural(more, 'further finding')}: see --explain, --json or the report.")


def unexplained_lines(analysis: Analysis) -> Iterator[RenderableType]:
    """Yield what ranks were late for without a reason that the traces show, where it is as large as a finding."""
    for cause in analysis.causes:
        if cause.cause == "unexplained" and cause.rank is not None and cause.share_of_step >= NOTICEABLE:
            cost = f"{duration(cause.cost_ns_per_step)}/step, {percent(cause.share_of_step)}"
            yield Text(
                printable(f"Not explained: the others wait {cost}, for rank {cause.rank} without a reason shown.")
            )


def finding_lines(number: int, finding: Finding) -> Iterator[RenderableType]:
    """Yield one finding: a line to scan, then the sentence, then the advice."""
    where = [] if finding.rank is None else [f"rank {finding.rank}"]
    where += [] if finding.layer is None else [f"layer {finding.layer}"]
    at_most = "at most " if finding.evidence.get("is_upper_bound") else ""
    cost = f"{at_most}{duration(finding.cost_ns_per_step)}/step, {percent(finding.share_of_step)}"
    line = Text(f"{number}. ")
    line.append(printable(finding.code), style=_STYLES.get(finding.severity, "bold"))
    facts = [*where, *([cost] if finding.cost_ns_per_step else []), finding.severity]
    line.append(printable(f"  {' · '.join(facts)}"))
    yield line
    claim = f"{finding.claim} Confidence {finding.confidence}, {finding.basis}."
    yield Padding(Text(printable(claim)), (0, 0, 0, 3), expand=False)
    if finding.advice:
        yield Padding(Text(printable(f"Try: {finding.advice}")), (0, 0, 0, 3), expand=False)


def evidence_lines(analysis: Analysis, finding: Finding) -> Iterator[RenderableType]:
    """Yield the numbers behind one finding, how they were computed, and when to look on the timeline."""
    for label, value in numbers(finding):
        yield Padding(Text(printable(f"{label}: {value}")), (0, 0, 0, 6), expand=False)
    if finding.rank is not None and (when := moment_text(analysis, finding)):
        yield Padding(Text(printable(f"on the timeline: {when}")), (0, 0, 0, 6), expand=False)


def load_title(analysis: Analysis) -> str:
    """Return the heading of the load table, with where its counts come from."""
    load = analysis.load
    if load is None:
        return "Load"
    cost = "" if load.cost_ns_per_step is None else f"; uneven expert time {duration(load.cost_ns_per_step)} per step"
    return printable(
        f"Load, tokens from {load.source}: MaxVio over ranks {ratio(load.maxvio_rank)}, "
        f"random routing alone {ratio(load.maxvio_rank_floor)}{cost}"
    )


def memory_lines(analysis: Analysis) -> Iterator[RenderableType]:
    """Yield the rank whose memory peak is highest, beside the lowest."""
    if not analysis.memory:
        return
    top = max(analysis.memory, key=lambda memory: memory.allocated_peak_bytes)
    low = min(analysis.memory, key=lambda memory: memory.allocated_peak_bytes)
    of_capacity = f" of {size(top.capacity_bytes)}" if top.capacity_bytes else ""
    yield title_line("Memory")
    text = f"Rank {top.rank} peaks at {size(top.allocated_peak_bytes)}{of_capacity} allocated, in {top.peak_phase}"
    if low.rank != top.rank:
        text += f"; rank {low.rank} at {size(low.allocated_peak_bytes)}"
    yield Text(printable(text + "."))
    if analysis.memory_use.tokens:
        yield Text(printable(tokens_panel(analysis).reading))


def host_lines(analysis: Analysis) -> Iterator[RenderableType]:
    """Yield the operations behind most of the devices' idle time, as means over the ranks."""
    sums: dict[tuple[str, str, str], int] = {}
    for row in analysis.host.idle:
        key = (row.operation, row.kind, row.detail)
        sums[key] = sums.get(key, 0) + row.ns_per_step
    if not sums:
        return
    ranks = len({row.rank for row in analysis.host.idle})
    yield title_line("Idle goes back to, per rank and step")
    for (operation, kind, detail), total in sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:MAX_OPERATIONS]:
        why = f" ({detail})" if detail else ""
        yield Text(printable(f"{duration(total / ranks)}  {kind}  {operation}{why}"))


def missing_lines(analysis: Analysis) -> Iterator[RenderableType]:
    """Yield what the input lacks, and what was lost of it."""
    if analysis.missing:
        yield title_line("Missing")
    for missing in analysis.missing:
        yield Text(printable(f"{missing.what}: {missing.why}"))
        yield Padding(Text(printable(f"Record it: {missing.how_to_record}")), (0, 0, 0, 3), expand=False)
    damaged = [source for source in analysis.sources if source.problems]
    if damaged:
        yield title_line(f"Damaged input: {rank_names([source.rank for source in damaged])}")
    for source in damaged[:MAX_FINDINGS]:
        yield Text(printable(f"{source.file}: {'; '.join(source.problems)}"))
    if len(damaged) > MAX_FINDINGS:
        yield Text(f"and {len(damaged) - MAX_FINDINGS} more: see moescope doctor.")


def next_lines(analysis: Analysis) -> Iterator[RenderableType]:
    """Yield the commands that lead on from here."""
    path = shlex.quote(analysis.path)
    yield title_line("Next")
    yield Text(printable(f"moescope report {path} -o report.html    one page to pass on"))
    yield Text(printable(f"moescope serve {path}    the evidence, and the timeline of all ranks"))
