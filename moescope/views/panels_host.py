"""The panel about the host: where devices idle, by kind."""

from __future__ import annotations

from collections.abc import Sequence

from moescope.views.model import Analysis
from moescope.views.panels import Column, Empty, Panel, Table, step_ns
from moescope.views.panels_step import NO_STEPS, RankParts, rank_parts
from moescope.views.text import duration, percent

HOST_PARTS = {
    "idle.host_launch": ("Host launch", "the host had not launched the next work yet"),
    "idle.sync": ("Synchronising", "the host had just waited for the device, such as for a copy or .item()"),
    "idle.dependency": ("Dependency", "work was launched but waited for another stream"),
    "idle.gap": ("Launch gap", "kernels followed each other with short gaps"),
    "idle.outside": ("Outside the step's work", "the host loaded data, wrote a checkpoint or collected garbage"),
    "memory.allocator": ("Allocator", "allocation calls stalled the device"),
}
"""Part of the step -> (its name, what it means)."""
NOT_IDLE = Empty("No device was idle in the profiled steps, and no allocation stalled one.", "")


def host_ns(row: RankParts) -> float:
    """Time in all of :data:`HOST_PARTS`."""
    return sum(row.parts_ns.get(part, 0.0) for part in HOST_PARTS)


def used_host_parts(rows: Sequence[RankParts]) -> list[str]:
    """Those that hold any time on any rank."""
    return [part for part in HOST_PARTS if any(row.parts_ns.get(part) for row in rows)]


def host_panel(analysis: Analysis) -> Panel:
    """Idle time of every rank by kind, and stalls of the allocator."""
    key, title, question = "host", "Idle time by kind", "Does the host keep the devices waiting, and with what?"
    rows = rank_parts(analysis)
    if not rows:
        return Panel(key, title, question, empty=NO_STEPS)
    if not any(map(host_ns, rows)):
        return Panel(key, title, question, empty=NOT_IDLE)
    columns = (
        Column("rank", "id"),
        Column("host"),
        Column("idle and stalled", "ms"),
        Column("of the step", "percent"),
        *(Column(name.lower(), "ms") for name, _ in HOST_PARTS.values()),
    )
    body = tuple(
        (row.rank, row.host, host_ns(row), host_ns(row) / row.window_ns if row.window_ns else None,
         *(row.parts_ns.get(part, 0.0) for part in HOST_PARTS))
        for row in rows
    )  # fmt: skip
    caption = "Milliseconds per step in which the device neither computes, communicates nor copies."
    notes = tuple(f"{HOST_PARTS[part][0]}: {HOST_PARTS[part][1]}." for part in used_host_parts(rows))
    table = Table("host", columns, body, caption)
    return Panel(key, title, question, _reading(rows, step_ns(analysis)), (table,), notes=notes)


def _reading(rows: Sequence[RankParts], window: float) -> str:
    most = max(rows, key=host_ns)
    kind = max(HOST_PARTS, key=lambda part: most.parts_ns.get(part, 0.0))
    share = f" ({percent(host_ns(most) / window)} of the step)" if window else ""
    return (
        f"Rank {most.rank} is idle longest, {duration(host_ns(most))} per step{share}; "
        f"{duration(most.parts_ns.get(kind, 0.0))} of it because {HOST_PARTS[kind][1]}."
    )
