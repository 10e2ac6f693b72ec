"""The panel about the host: where devices idle, by kind."""

from __future__ import annotations

from collections.abc import Sequence

from moescope.views.model import Analysis
from moescope.views.model.host import IdleCause
from moescope.views.panels import Column, Empty, Panel, Table, step_ns
from moescope.views.panels.step import NO_STEPS, RankParts, rank_parts
from moescope.views.text import count, duration, percent, ratio

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


IDLE_KINDS = {part.removeprefix("idle."): name for part, (name, _) in HOST_PARTS.items() if part.startswith("idle.")}
"""Kind of idleness -> its name."""
NO_CAUSES = Empty("No device was idle in the profiled steps.", "")
NO_LAUNCHES = Empty(
    "The traces hold no device events, so no launches are known.",
    "Record the device with ProfilerActivity.CUDA; on a CPU run nothing is missing.",
)
MOST_OPERATIONS = 200


def idle_panel(analysis: Analysis) -> Panel:
    """The operations behind idle time, most time first over all ranks."""
    key, title, question = "idle", "Operations behind idle time", "Which operation keeps the devices waiting?"
    rows = sorted(analysis.host.idle, key=lambda row: (-row.ns_per_step, row.rank, row.kind, row.operation))
    if not rows:
        return Panel(key, title, question, empty=NO_CAUSES)
    columns = (
        Column("operation"),
        Column("kind"),
        Column("by"),
        Column("rank", "id"),
        Column("layer", "id"),
        Column("phase"),
        Column("per step", "ms"),
        Column("times per step", "count"),
        Column("longest", "duration"),
    )
    body = tuple(
        (row.operation, IDLE_KINDS.get(row.kind, row.kind), row.detail, row.rank, row.layer, row.phase,
         row.ns_per_step, row.times_per_step, row.longest_ns)
        for row in rows[:MOST_OPERATIONS]
    )  # fmt: skip
    top, by_operation = rows[0], _by_operation(rows)
    (kind, operation), total = max(by_operation.items(), key=lambda item: item[1])
    num_ranks = len({row.rank for row in rows})
    reading = (
        f"Most goes back to {operation} ({IDLE_KINDS.get(kind, kind).lower()}): {duration(total / num_ranks)} per rank "
        f"and step; on a single rank {duration(top.ns_per_step)}, on rank {top.rank}, to {top.operation}."
    )
    notes = (f"Of {len(rows)} rows, {MOST_OPERATIONS} are listed.",) if len(rows) > MOST_OPERATIONS else ()
    return Panel(key, title, question, reading, (Table("idle", columns, body),), notes=notes)


def _by_operation(rows: Sequence[IdleCause]) -> dict[tuple[str, str], int]:
    """Idle ns per step of each kind and operation, summed over ranks."""
    sums: dict[tuple[str, str], int] = {}
    for row in rows:
        sums[row.kind, row.operation] = sums.get((row.kind, row.operation), 0) + row.ns_per_step
    return sums


def launches_panel(analysis: Analysis) -> Panel:
    """How each rank's host launches work."""
    key, title, question = "launches", "Launches", "Does the host run ahead of the device?"
    rows = analysis.host.launches
    if not rows:
        return Panel(key, title, question, empty=NO_LAUNCHES)
    columns = (
        Column("rank", "id"),
        Column("launches per step", "count"),
        Column("per ms", "ratio"),
        Column("device work per step", "count"),
        Column("in graphs", "count"),
        Column("without a launch", "count"),
        Column("call, median", "duration"),
        Column("latency, median", "duration"),
        Column("latency, 95 %", "duration"),
        Column("queue, mean", "ratio"),
        Column("queue, most", "count"),
    )
    body = tuple(
        (r.rank, r.launches_per_step, r.launches_per_ms, r.device_events_per_step, r.device_events_in_graphs_per_step,
         r.device_events_without_launch_per_step, r.call_median_ns, r.latency_median_ns, r.latency_p95_ns, r.queue_mean,
         r.queue_max)
        for r in rows
    )  # fmt: skip
    shallow = min(rows, key=lambda r: r.queue_mean if r.queue_mean is not None else float("inf"))
    reading = (
        f"Rank {shallow.rank}'s queue is shallowest: {ratio(shallow.queue_mean)} launched and not begun on average, "
        f"{count(shallow.launches_per_step)} launches per step."
    )
    caption = (
        "Latency: from the call to the work's beginning, its wait in the queue included. A queue near 1 means that the "
        "device waits for every launch."
    )
    return Panel(key, title, question, reading, (Table("launches", columns, body, caption),))
