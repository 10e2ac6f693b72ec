"""All ranks on one time line: a trace that Perfetto and chrome://tracing open.

Each rank keeps its events, moved to the common clock, with process ids that no other rank has; launches are linked to
their kernels by ids that are unique over all ranks. Beside them stand tracks of moescope's own: the steps, every
collective split into wait and transfer, and counters of memory and of received bytes. Events are written rank by rank,
so memory is bounded by the largest rank.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from moescope.trace import RankTrace
from moescope.views.model import Analysis, Clock, Collective, CollectiveRank

MAX_PIDS_PER_WINDOW = 10_000
MAX_CAUSES = 10
DEVICE_CATEGORIES = ("kernel", "copy", "memset", "gpu_annotation")
ARGUMENTS = ("bytes", "correlation", "input_dims")
STEPS_TID, WAITS_TID = 900_000_001, 900_000_002
"""Thread ids of moescope's own tracks, above every stream and Linux thread id."""


def chunks(analysis: Analysis, traces: Sequence[RankTrace]) -> Iterator[str]:
    """Yield the text of one JSON trace object, in pieces of at most one rank's window."""
    base_ns = min((common_ns(trace.start_ns, clock_of(analysis, trace.rank)) for trace in traces), default=0)
    head = {"displayTimeUnit": "ms", "baseTimeNanoseconds": base_ns, "name": analysis.name, "basis": analysis.basis}
    yield json.dumps(head)[:-1] + ', "traceEvents": [\n'
    parts = parts_by_rank(analysis)
    yield ",\n".join(_verdict(analysis, len(traces), base_ns))
    for number, trace in enumerate(traces):
        lines = [*_window_lines(analysis, trace, number, base_ns), *_own_tracks(analysis, trace, number, base_ns)]
        if not trace.window:
            pid = _own_pid(number)
            lines += [line for part in parts.get(trace.rank, ()) for line in _part_lines(part, pid, base_ns)]
        yield "".join(",\n" + line for line in lines)
    yield "\n]}\n"


@dataclass(frozen=True, slots=True)
class Part:
    """One rank's part in one collective."""

    collective: Collective
    mine: CollectiveRank
    last_rank: int


def parts_by_rank(analysis: Analysis) -> dict[int, list[Part]]:
    """Return each rank's parts in the collectives, with the rank that arrived last."""
    parts: dict[int, list[Part]] = {}
    for collective in analysis.collectives:
        last = max(collective.by_rank, key=lambda member: member.start_ns).rank
        for member in collective.by_rank:
            parts.setdefault(member.rank, []).append(Part(collective, member, last))
    return parts


def clock_of(analysis: Analysis, rank: int) -> Clock | None:
    """Return the clock of the rank's host, ``None`` where nothing was aligned."""
    return next((clock for clock in analysis.clock if rank in clock.ranks), None)


def common_ns(local_ns: int, clock: Clock | None) -> int:
    """Return a host's local time on the common clock."""
    if clock is None:
        return local_ns
    return local_ns - clock.offset_ns - round(clock.drift_ppm * 1e-6 * (local_ns - clock.origin_ns))


def _window_lines(analysis: Analysis, trace: RankTrace, number: int, base_ns: int) -> Iterator[str]:
    clock = clock_of(analysis, trace.rank)
    events = trace.events(
        ("index", "start_ns", "dur_ns", "category", "name", "pid", "tid", "device", "stream", *ARGUMENTS)
    )
    events = _on_common_clock(events, clock, base_ns)
    pids = _pids(events, number)
    events = events.join(pids, on=["is_device", "pid"], maintain_order="left")
    yield from _names(trace, pids, clock)
    yield from _slices(events)
    yield from _flows(events, number)


def _on_common_clock(events: pl.DataFrame, clock: Clock | None, base_ns: int) -> pl.DataFrame:
    local = pl.col("start_ns")
    shift: pl.Expr = pl.lit(0)
    if clock is not None:
        shift = clock.offset_ns + (clock.drift_ppm * 1e-6 * (local - clock.origin_ns)).round().cast(pl.Int64)
    return events.with_columns(
        start_ns=local - shift - base_ns,
        category=pl.col("category").cast(pl.String),
        name=pl.col("name").cast(pl.String),
        is_device=pl.col("category").cast(pl.String).is_in(DEVICE_CATEGORIES),
    )


def _pids(events: pl.DataFrame, number: int) -> pl.DataFrame:
    """Return ``is_device, pid, new_pid``: hosts' processes first, then devices; unique over windows."""
    pids = events.select("is_device", "pid").unique().sort("is_device", "pid", nulls_last=True)
    first = number * MAX_PIDS_PER_WINDOW + 1
    return pids.with_row_index("new_pid", first).with_columns(pl.col("new_pid").cast(pl.Int64))


def _names(trace: RankTrace, pids: pl.DataFrame, clock: Clock | None) -> Iterator[str]:
    window = f" window {trace.window}" if trace.window else ""
    host = f" on {clock.host}" if clock is not None and clock.host else ""
    for row in pids.iter_rows(named=True):
        part = f"device {row['pid']}" if row["is_device"] else f"host process {row['pid']}{host}"
        yield from _process(row["new_pid"], f"rank {trace.rank}{window}: {part}")


def _process(pid: int, name: str) -> Iterator[str]:
    yield json.dumps({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})
    yield json.dumps({"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}})


def _slices(events: pl.DataFrame) -> Iterable[str]:
    rows = events.select(
        ph=pl.lit("X"),
        name="name",
        cat="category",
        pid="new_pid",
        tid=pl.when("is_device").then(pl.coalesce("stream", "tid")).otherwise("tid"),
        ts=pl.col("start_ns") / 1000,
        dur=pl.col("dur_ns") / 1000,
        args=pl.struct(ARGUMENTS),
    )
    return rows.select(pl.struct(pl.all()).struct.json_encode()).to_series()


def _flows(events: pl.DataFrame, number: int) -> Iterator[str]:
    """Yield the links from launches to kernels, by correlation."""
    linked = events.filter(pl.col("correlation").is_not_null() & (pl.col("correlation") != 0))
    launches = linked.filter(category="runtime").unique("correlation", keep="first")
    kernels = linked.filter("is_device").unique("correlation", keep="first")
    pairs = launches.join(
        kernels.select("correlation", at="start_ns", to_pid="new_pid", to_tid="stream"), on="correlation"
    )
    for row in pairs.iter_rows(named=True):
        flow = {"cat": "launch", "name": "launch", "id": f"{number}.{row['correlation']}"}
        yield json.dumps({"ph": "s", **flow, "pid": row["new_pid"], "tid": row["tid"], "ts": row["start_ns"] / 1000})
        end = {"pid": row["to_pid"], "tid": row["to_tid"], "ts": row["at"] / 1000}
        yield json.dumps({"ph": "f", "bp": "e", **flow, **end})


def _own_pid(number: int) -> int:
    return (number + 1) * MAX_PIDS_PER_WINDOW


def _own_tracks(analysis: Analysis, trace: RankTrace, number: int, base_ns: int) -> Iterator[str]:
    """Yield the steps and the memory of one rank; its first window carries them all."""
    if trace.window:
        return
    pid = _own_pid(number)
    yield from _process(pid, f"rank {trace.rank}: moescope")
    yield _thread(pid, STEPS_TID, "steps")
    yield _thread(pid, WAITS_TID, "collectives: wait and transfer")
    for row in analysis.ranks:
        if row.rank == trace.rank:
            parts = {part: ns for part, ns in row.parts_ns.items() if ns}
            yield _slice(
                f"step {row.step}", pid, STEPS_TID, (row.start_ns - base_ns, row.window_ns), {"parts_ns": parts}
            )
    for memory in analysis.memory:
        if memory.rank == trace.rank:
            for time_ns, allocated in memory.series:
                yield _counter("allocated bytes", pid, time_ns - base_ns, allocated)


def _part_lines(part: Part, pid: int, base_ns: int) -> Iterator[str]:
    """Yield the wait and the transfer of one rank in one collective, and what it received."""
    collective, mine = part.collective, part.mine
    where = {"group": collective.group, "sequence": collective.sequence, "step": collective.step}
    args = {**where, "layer": collective.layer, "phase": collective.phase, "last_to_arrive": part.last_rank}
    start = mine.start_ns - base_ns
    if mine.arrival_wait_ns:
        waits = {**args, "removable_wait_ns": mine.removable_wait_ns}
        yield _slice(f"{collective.kind}: wait", pid, WAITS_TID, (start, mine.arrival_wait_ns), waits)
    moved = {**args, "send_bytes": mine.send_bytes, "recv_bytes": mine.recv_bytes}
    after = start + mine.arrival_wait_ns
    yield _slice(f"{collective.kind}: transfer", pid, WAITS_TID, (after, mine.transfer_ns), moved)
    if collective.kind == "all_to_all" and mine.recv_bytes is not None:
        yield _counter("received bytes", pid, start, mine.recv_bytes)
        yield _counter("received bytes", pid, mine.end_ns - base_ns, 0)


def _verdict(analysis: Analysis, num_windows: int, base_ns: int) -> Iterator[str]:
    """Yield a process of its own for findings and causes, over the profiled steps."""
    pid = _own_pid(num_windows)
    yield from _process(pid, "moescope: verdict")
    low = min((row.start_ns for row in analysis.ranks), default=base_ns)
    high = max((row.start_ns + row.window_ns for row in analysis.ranks), default=base_ns)
    span = (low - base_ns, high - low)
    for number, finding in enumerate(analysis.findings):
        args = {"claim": finding.claim, "advice": finding.advice, "cost_ns_per_step": finding.cost_ns_per_step}
        yield _thread(pid, number, f"finding {number + 1}: {finding.severity}")
        yield _slice(finding.code, pid, number, span, {**args, "rank": finding.rank, "confidence": finding.confidence})
    for number, cause in enumerate(analysis.causes[:MAX_CAUSES], start=len(analysis.findings)):
        name = cause.cause if cause.rank is None else f"{cause.cause}: rank {cause.rank}"
        yield _thread(pid, number, f"cause {number + 1 - len(analysis.findings)}")
        yield _slice(name, pid, number, span, {"layer": cause.layer, "cost_ns_per_step": cause.cost_ns_per_step})


def _thread(pid: int, tid: int, name: str) -> str:
    return json.dumps({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}})


def _slice(name: str, pid: int, tid: int, span_ns: tuple[int, int], args: Mapping[str, object]) -> str:
    times = {"ts": span_ns[0] / 1000, "dur": span_ns[1] / 1000}
    return json.dumps({"ph": "X", "cat": "moescope", "name": name, "pid": pid, "tid": tid, **times, "args": args})


def _counter(name: str, pid: int, at_ns: int, value: int) -> str:
    return json.dumps({"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": at_ns / 1000, "args": {"value": value}})
