"""Memory of one rank: the peak, where it was reached, and what was live there.

Blocks allocated before the window are known only as a sum; blocks allocated inside it are followed by address,
and each is booked to the phase (or, without phases, the operation) that allocated it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from moescope.align.context import contexts, enclosing
from moescope.align.ranges import IntArray
from moescope.align.steps import assign_steps
from moescope.trace import RankTrace

NUM_SERIES_BUCKETS = 200
BEFORE_WINDOW = "before the window"
NO_PHASE = "no annotated phase"
NO_LAYER = "no annotated layer"
NO_OPERATION = "no operation recorded"
OTHERS = "other operations"
MOST_OPERATIONS = 12


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """Local clock, bytes. ``series``: (time, allocated), each bucket's maximum."""

    device: str
    allocated_peak_bytes: int
    reserved_peak_bytes: int | None
    capacity_bytes: int | None
    peak_at_ns: int
    peak_phase: str
    live_by_phase_bytes: dict[str, int]
    series: tuple[tuple[int, int], ...]
    reserved_at_peak_bytes: int | None = None
    """Reserved when most was allocated; what it is more than that is fragmentation."""
    peak_by_step_bytes: dict[int, int] = field(default_factory=dict)
    live_by_layer_bytes: dict[str, int] = field(default_factory=dict)
    live_by_operation_bytes: dict[str, int] = field(default_factory=dict)
    """At the peak, by the innermost operation that allocated; the smaller ones together."""
    reserved_series: tuple[tuple[int, int], ...] = ()
    """At the moments of ``series``."""


def memory_profile(trace: RankTrace, events: pl.DataFrame, windows: pl.DataFrame) -> MemoryProfile | None:
    """The rank's busiest device (a GPU before the host); None where the trace records no memory totals."""
    memory = trace.memory().drop_nulls("total_allocated")
    if memory.is_empty():
        return None
    on_gpu = memory.filter(pl.col("device_type") != 0)
    used = on_gpu if len(on_gpu) else memory
    device = used["device_id"].mode().sort().item(0)
    used = used.filter(pl.col("device_id") == device).sort("ts_ns")
    inside = used.filter(pl.col("ts_ns").is_between(windows["start_ns"].min(), windows["end_ns"].max()))
    used = inside if len(inside) else used
    total = used["total_allocated"].to_numpy()
    peak = int(np.argmax(total))
    at_ns = int(used["ts_ns"][peak])
    owners = _Owners(events, used)
    phases = owners.phases()
    until = used.head(peak + 1)
    kept = _buckets(total)
    reserved = int(used["total_reserved"].max() or 0)  # type: ignore[arg-type]
    return MemoryProfile(
        device=trace.device if len(on_gpu) else "host",
        allocated_peak_bytes=int(total[peak]),
        reserved_peak_bytes=reserved or None,
        capacity_bytes=_capacity(trace, int(device)) if len(on_gpu) else None,
        peak_at_ns=at_ns,
        peak_phase=phases[peak],
        live_by_phase_bytes=_live_at(until, phases, int(total[peak])),
        series=_at(used, "total_allocated", kept),
        reserved_at_peak_bytes=used["total_reserved"][peak] or None,
        peak_by_step_bytes=_peak_by_step(used, windows),
        live_by_layer_bytes=_live_at(until, owners.layers(), int(total[peak])),
        live_by_operation_bytes=_largest(_live_at(until, owners.operations(), int(total[peak]))),
        reserved_series=_at(used, "total_reserved", kept) if reserved else (),
    )


def _peak_by_step(used: pl.DataFrame, windows: pl.DataFrame) -> dict[int, int]:
    """The highest total within each step that has an event."""
    table = used.with_columns(step=assign_steps(used["ts_ns"], windows)).drop_nulls("step")
    return dict(table.group_by("step").agg(pl.col("total_allocated").max()).sort("step").rows())


def _capacity(trace: RankTrace, device: int) -> int | None:
    properties = trace.info.get("deviceProperties")
    for entry in properties if isinstance(properties, list) else []:
        if isinstance(entry, dict) and entry.get("id") == device and isinstance(entry.get("totalGlobalMem"), int):
            return int(entry["totalGlobalMem"])
    return None


class _Owners:
    """What the host was in at each memory event, [m]."""

    def __init__(self, events: pl.DataFrame, used: pl.DataFrame):
        self._events = events
        self._at = used["ts_ns"].to_numpy(), used["tid"].to_numpy()
        self._context = contexts(events, *self._at)

    def phases(self) -> list[str]:
        """The phase, else the innermost annotation, else the operation."""
        is_backward = pl.when(pl.col("backward")).then(pl.col("phase") + " (backward)").otherwise(pl.col("phase"))
        names = self._context.select(is_backward).to_series()
        if names.null_count() == 0:
            return names.to_list()
        is_step = pl.col("name").cast(pl.String).str.starts_with("ProfilerStep")
        ranges = self._events.filter((pl.col("category") == "annotation") & ~is_step)
        annotation = _innermost_name(ranges, *self._at)
        return names.fill_null(annotation).fill_null(self._operation()).fill_null(NO_PHASE).to_list()

    def layers(self) -> list[str]:
        """``layer 3``, or that none was annotated."""
        layer = pl.lit("layer ") + pl.col("layer").cast(pl.String)
        return self._context.select(layer).to_series().fill_null(NO_LAYER).to_list()

    def operations(self) -> list[str]:
        """The innermost operation."""
        return self._operation().fill_null(NO_OPERATION).to_list()

    def _operation(self) -> pl.Series:
        return _innermost_name(self._events.filter(pl.col("category") == "cpu_op"), *self._at)


def _innermost_name(ranges: pl.DataFrame, moment: IntArray, thread: IntArray) -> pl.Series:
    slot = enclosing(ranges, moment, thread)
    return ranges["name"].cast(pl.String).gather(pl.Series(slot).replace(-1, None))


def _live_at(used: pl.DataFrame, phases: list[str], total: int) -> dict[str, int]:
    """Live bytes at the last row by allocating phase; the rest was there before the window. Empty without addresses."""
    if used["addr"].null_count():
        return {}
    rows = used.with_columns(phase=pl.Series(phases[: len(used)]), turn=pl.int_range(pl.len()))
    last = rows.group_by("addr").agg(pl.all().sort_by("turn").last())
    live = last.filter(pl.col("bytes") > 0).group_by("phase").agg(pl.col("bytes").sum())
    by_phase = {phase: int(size) for phase, size in live.sort(["bytes", "phase"], descending=[True, False]).rows()}
    rest = total - sum(by_phase.values())
    return {**by_phase, BEFORE_WINDOW: rest} if rest else by_phase


def _largest(live: dict[str, int]) -> dict[str, int]:
    """The largest, and the others together."""
    names = sorted(live, key=lambda name: (-live[name], name))
    rest = sum(live[name] for name in names[MOST_OPERATIONS:])
    kept = {name: live[name] for name in names[:MOST_OPERATIONS]}
    return {**kept, OTHERS: rest} if rest else kept


def _buckets(total: IntArray) -> list[int]:
    """The event with the highest total of each bucket."""
    bucket = np.linspace(0, NUM_SERIES_BUCKETS, len(total), endpoint=False).astype(np.int64)
    first = np.unique(bucket, return_index=True)[1]
    return [int(low + np.argmax(part)) for low, part in zip(first, np.split(total, first[1:]), strict=True)]


def _at(used: pl.DataFrame, column: str, rows: list[int]) -> tuple[tuple[int, int], ...]:
    """(time, value) of the given rows, those without a value left out."""
    return tuple(used[rows].select("ts_ns", column).drop_nulls().rows())
