"""Panels about memory, the inputs and the run itself."""

from __future__ import annotations

import json

from moescope.views.model import Analysis, Json
from moescope.views.panels import Cell, Column, Empty, Panel, Table
from moescope.views.text import percent, plural, size

MOST_CHARACTERS = 600
"""Of one value of run.json."""
NO_MEMORY = Empty(
    "There are no memory events or memory telemetry.",
    "Record with profile_memory=True, or train inside moescope_hooks.observe(model, out=RUN).",
)


def memory_panel(analysis: Analysis) -> Panel:
    """Peaks per rank, what was live at the peak, headroom."""
    key, title, question = "memory", "Memory", "Which rank peaks highest, and what is in the peak?"
    if not analysis.memory:
        return Panel(key, title, question, empty=NO_MEMORY)
    columns = (
        Column("rank", "id"),
        Column("device"),
        Column("allocated peak", "bytes"),
        Column("reserved peak", "bytes"),
        Column("capacity", "bytes"),
        Column("headroom", "bytes"),
        Column("reserved beyond the peak", "bytes"),
        Column("running at the peak"),
        Column("largest at the peak"),
    )
    rows: list[tuple[Cell, ...]] = []
    for m in analysis.memory:
        held = m.reserved_peak_bytes if m.reserved_peak_bytes is not None else m.allocated_peak_bytes
        headroom = None if m.capacity_bytes is None else m.capacity_bytes - held
        largest = max(m.live_by_phase_bytes.items(), key=lambda item: item[1], default=None)
        what = None if largest is None else f"{largest[0]}: {size(largest[1])}"
        spare = None if m.reserved_at_peak_bytes is None else m.reserved_at_peak_bytes - m.allocated_peak_bytes
        rows.append((m.rank, m.device, m.allocated_peak_bytes, m.reserved_peak_bytes, m.capacity_bytes, headroom,
                     spare, m.peak_phase, what))  # fmt: skip
    top = max(analysis.memory, key=lambda m: m.allocated_peak_bytes)
    least = min(analysis.memory, key=lambda m: m.allocated_peak_bytes)
    reading = f"Rank {top.rank} peaks highest, {size(top.allocated_peak_bytes)}"
    if top is not least:
        reading += f", against {size(least.allocated_peak_bytes)} on rank {least.rank}"
    if top.capacity_bytes:
        reading += f"; that is {percent(top.allocated_peak_bytes / top.capacity_bytes)} of its device"
    return Panel(key, title, question, reading + ".", (Table("memory", columns, tuple(rows)),))


def phases_of(analysis: Analysis) -> list[str]:
    """Phases with live memory at some rank's peak, largest first over all ranks."""
    sums: dict[str, int] = {}
    for m in analysis.memory:
        for phase, num_bytes in m.live_by_phase_bytes.items():
            sums[phase] = sums.get(phase, 0) + num_bytes
    return sorted(sums, key=lambda phase: (-sums[phase], phase))


def peaks_panel(analysis: Analysis) -> Panel:
    """What was live at each rank's peak."""
    key, title, question = "peaks", "Memory at the peak", "What fills the memory when it is fullest?"
    known = [m for m in analysis.memory if m.live_by_phase_bytes]
    if not known:
        empty = NO_MEMORY if not analysis.memory else Empty(
            "Only the height of the peaks is known, not what was live there.",
            "Record with profile_memory=True, so that the trace has every allocation.",
        )  # fmt: skip
        return Panel(key, title, question, empty=empty)
    phases = phases_of(analysis)
    columns = (Column("rank", "id"), *(Column(phase, "bytes") for phase in phases))
    rows = tuple((m.rank, *(m.live_by_phase_bytes.get(phase) for phase in phases)) for m in known)
    top = max(known, key=lambda m: m.allocated_peak_bytes)
    phase, num_bytes = max(top.live_by_phase_bytes.items(), key=lambda item: item[1])
    share = num_bytes / sum(top.live_by_phase_bytes.values()) if num_bytes else 0.0
    reading = f"At the peak of rank {top.rank}, {size(num_bytes)} ({percent(share)}) came from {phase}."
    caption = "Live at the peak, by the phase that allocated it."
    tables = [Table("peaks", columns, rows, caption)]
    if owners := _owners(analysis):
        columns = (Column("rank", "id"), Column("by"), Column("what"), Column("live at the peak", "bytes"))
        tables.append(Table("peakowners", columns, owners, "The same by layer, and by operation."))
    return Panel(key, title, question, reading, tuple(tables))


def _owners(analysis: Analysis) -> tuple[tuple[Cell, ...], ...]:
    return tuple(
        (m.rank, by, what, num_bytes)
        for m in analysis.memory
        for by, held in (("layer", m.live_by_layer_bytes), ("operation", m.live_by_operation_bytes))
        for what, num_bytes in held.items()
    )


def sources_panel(analysis: Analysis) -> Panel:
    """The files that were read and what is wrong with them."""
    key, title, question = "sources", "Inputs", "What was read?"
    if not analysis.sources:
        return Panel(key, title, question, empty=Empty("No trace could be read.", "moescope doctor DIR says why."))
    columns = (
        Column("rank", "id"),
        Column("window", "id"),
        Column("file"),
        Column("host"),
        Column("device"),
        Column("span", "duration"),
        Column("events", "count"),
        Column("device events", "count"),
        Column("problems"),
    )
    rows = tuple(
        (s.rank, s.window, s.file, s.host, s.device, s.end_ns - s.start_ns, s.num_events, s.num_device_events,
         "; ".join(s.problems))
        for s in analysis.sources
    )  # fmt: skip
    events = sum(s.num_events for s in analysis.sources)
    ranks = {s.rank for s in analysis.sources}
    reading = f"{plural(len(ranks), 'rank')} in {plural(len(analysis.sources), 'file')}, {plural(events, 'event')}."
    bad = sum(1 for s in analysis.sources if s.problems)
    if bad:
        reading += f" {plural(bad, 'file')} could be read only in part."
    return Panel(key, title, question, reading, (Table("sources", columns, rows),))


def missing_panel(analysis: Analysis) -> Panel:
    """What the input lacks, the question that leaves open, and how to record it."""
    key, title, question = "missing", "What is missing", "Which questions stay open, and what would answer them?"
    if not analysis.missing:
        return Panel(key, title, question, empty=Empty("Nothing that the analysis looks for is missing.", ""))
    columns = (Column("missing"), Column("leaves open"), Column("how to record it"))
    rows = tuple((m.what, m.why, m.how_to_record) for m in analysis.missing)
    reading = f"{plural(len(rows), 'kind')} of data would answer more."
    return Panel(key, title, question, reading, (Table("missing", columns, rows),))


def provenance_panel(analysis: Analysis) -> Panel:
    """run.json, flattened to dotted keys."""
    key, title, question = "provenance", "Provenance", "What was run, how, and on what?"
    rows = tuple(flatten(dict(analysis.provenance)))
    if not rows:
        empty = Empty(
            "There is no run.json, so the command, versions, model and parallel layout aren't known.",
            "Train inside moescope_hooks.observe(model, out=RUN); it writes run.json.",
        )
        return Panel(key, title, question, empty=empty)
    table = Table("provenance", (Column("key"), Column("value")), rows)
    return Panel(key, title, question, f"{plural(len(rows), 'field')} of run.json.", (table,))


def _brief(item: Json) -> str:
    text = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[:MOST_CHARACTERS]}… ({plural(len(item), 'item') if isinstance(item, list) else 'cut'})"


def flatten(value: dict[str, Json], prefix: str = "") -> list[tuple[str, str]]:
    """Nested objects as dotted keys; lists as compact JSON."""
    result: list[tuple[str, str]] = []
    for key, item in value.items():
        name = f"{prefix}{key}"
        if isinstance(item, dict):
            result += flatten(item, f"{name}.")
        else:
            result.append((name, _brief(item)))
    return result
