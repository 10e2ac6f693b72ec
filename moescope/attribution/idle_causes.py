"""Which operation an idle stretch of the device goes back to, by the kind of idleness that ``idle`` found.

* ``sync``: the operation on the host that made the synchronising call (``aten::item``), the copy it waited for where it
  had just asked for one, and the call;
* ``host_launch``: the operation that the launching thread was in, or, between operations, the one it came to next:
  then the time is Python's before it;
* ``gap`` and ``dependency``: the operation that launched what came next, and what that waited for;
* ``outside``: the range in which the host loaded data, wrote a checkpoint or collected garbage.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from moescope.align.context import contexts, enclosing
from moescope.align.ranges import IntArray, innermost, outermost_by_thread
from moescope.attribution.device import DEVICE_CATEGORIES
from moescope.attribution.idle import GRAPH_LAUNCH, SYNC_CALLS, outside_ranges
from moescope.attribution.labels import IDLE, PART

_CAUSE = ("kind", "operation", "detail", "layer", "phase")
SCHEMA = {
    "kind": pl.String, "operation": pl.String, "detail": pl.String, "layer": pl.Int32, "phase": pl.String,
    "ns": pl.Int64, "count": pl.Int64, "longest_ns": pl.Int64, "longest_start_ns": pl.Int64,
}  # fmt: skip
"""``kind``: a part without its ``idle.``. ``ns``, ``count``: over all steps; ``longest_start_ns``: local clock."""

MAX_ROWS = 200
NO_OPERATION = "no operation recorded"
AT_END = "after the last device work"
PYTHON = "Python code before it"


def idle_causes(events: pl.DataFrame, launch: pl.DataFrame, segments: pl.DataFrame, *, on_gpu: bool) -> pl.DataFrame:
    """The columns of SCHEMA, most time first, at most MAX_ROWS.

    ``events``, ``launch``: of the rank, see ``context.launches``; ``segments``: ``RankProfile.segments``.
    """
    names = {int(label): PART[label].removeprefix("idle.") for label in IDLE}
    idle = segments.filter(pl.col("label").is_in(list(names)))
    if idle.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    kind = idle["label"].cast(pl.Int64).replace_strict(names, return_dtype=pl.String)
    idle = idle.select("start_ns", "end_ns").with_columns(kind=kind)
    host = _Host(events)
    found = _of_gpu(idle, host, events, launch) if on_gpu else _of_host(idle, host)
    rows = found.with_columns(ns=pl.col("end_ns") - pl.col("start_ns")).filter(pl.col("ns") > 0)
    table = rows.group_by(_CAUSE).agg(
        pl.col("ns").sum().alias("total"),
        count=pl.len(),
        longest_ns=pl.col("ns").max(),
        longest_start_ns=pl.col("start_ns").sort_by("ns", "start_ns").last(),
    )
    order = ["ns", *_CAUSE]
    table = table.rename({"total": "ns"}).sort(order, descending=[name == "ns" for name in order])
    return table.head(MAX_ROWS).select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())


class _Host:
    """The host's outermost operations, by thread, and where a moment lies among them."""

    def __init__(self, events: pl.DataFrame):
        self.events = events
        ops = events.filter(pl.col("category") == "cpu_op").select("tid", "start_ns", "dur_ns", "name")
        start, tid = ops["start_ns"].to_numpy(), ops["tid"].to_numpy()
        keep = outermost_by_thread(start, start + ops["dur_ns"].to_numpy(), tid)
        self.ops = ops.filter(pl.Series(keep)).sort("start_ns")

    def operation(self, moment: IntArray, thread: IntArray) -> pl.Series:
        """The outermost operation around each moment, null for none; [m]."""
        slot = enclosing(self.ops, moment, thread)
        return self.ops["name"].cast(pl.String).gather(pl.Series(slot).replace(-1, None))

    def next_operation(self, moment: IntArray, thread: IntArray | None = None) -> pl.Series:
        """The first operation that begins at or after each moment (on its thread, if given), null for none; [m]."""
        found = np.full(len(moment), -1, dtype=np.int64)
        tids = self.ops["tid"].to_numpy()
        start = self.ops["start_ns"].to_numpy()
        for one in np.unique(thread) if thread is not None else (None,):
            rows = np.arange(len(start)) if one is None else np.flatnonzero(tids == one)
            asked = np.ones(len(moment), dtype=bool) if thread is None else thread == one
            slot = np.searchsorted(start[rows], moment[asked], side="left")
            found[asked] = np.where(slot < len(rows), rows[np.minimum(slot, len(rows) - 1)] if len(rows) else -1, -1)
        return self.ops["name"].cast(pl.String).gather(pl.Series(found).replace(-1, None))


def _of_gpu(idle: pl.DataFrame, host: _Host, events: pl.DataFrame, launch: pl.DataFrame) -> pl.DataFrame:
    """``idle`` with ``operation, detail, layer, phase``."""
    device = _device(events, launch)
    start, end = idle["start_ns"].to_numpy(), idle["end_ns"].to_numpy()
    after = np.searchsorted(device["start_ns"].to_numpy(), end, side="left")
    has_next = pl.Series(after < len(device))
    following = device[np.minimum(after, max(len(device) - 1, 0))]
    launched = following["launch_ns"].fill_null(-1).to_numpy()
    thread = following["launch_tid"].fill_null(-1).to_numpy()
    middle = (start + np.minimum(end, np.where(launched > 0, launched, end))) // 2
    sync = _sync(host, events, device, end)
    inside = host.operation(middle, thread)
    launcher = host.operation(launched, thread).fill_null(NO_OPERATION)
    before = _last_ended(device, start)
    table = idle.with_columns(
        has_next=has_next, inside=inside, launcher=launcher, next=host.next_operation(middle, thread),
        call=following["call"], before=before, outside=_outside(events, middle), **sync,
    )  # fmt: skip
    is_kind = {name: pl.col("kind") == name for name in ("sync", "host_launch", "gap", "dependency", "outside")}
    operation = (
        pl.when(is_kind["outside"]).then(pl.coalesce("outside", pl.lit(AT_END)))
        .when(is_kind["sync"]).then(pl.coalesce("sync_operation", pl.lit(NO_OPERATION)))
        .when(is_kind["host_launch"]).then(pl.coalesce("inside", "next", "launcher"))
        .otherwise("launcher")
    )  # fmt: skip
    detail = (
        pl.when(is_kind["sync"]).then("sync_detail")
        .when(is_kind["host_launch"] & pl.col("inside").is_null()).then(pl.lit(PYTHON))
        .when(is_kind["gap"] & pl.col("call").is_null()).then(pl.lit("no launch recorded"))
        .when(is_kind["gap"] & pl.col("call").str.contains(GRAPH_LAUNCH)).then(pl.lit("inside a graph"))
        .when(is_kind["gap"]).then(pl.lit("launch latency"))
        .when(is_kind["dependency"]).then(pl.lit("after ") + pl.col("before"))
        .otherwise(pl.lit(""))
    )  # fmt: skip
    table = table.with_columns(operation=operation, detail=detail.fill_null(""))
    moment = np.where((table["kind"] == "sync").to_numpy(), table["sync_ns"].to_numpy(), launched)
    tid = np.where((table["kind"] == "sync").to_numpy(), table["sync_tid"].to_numpy(), thread)
    where = contexts(events, moment, tid).select("layer", "phase")
    return pl.concat([table.select("kind", "start_ns", "end_ns", "operation", "detail"), where], how="horizontal")


def _device(events: pl.DataFrame, launch: pl.DataFrame) -> pl.DataFrame:
    """``start_ns, end_ns, name, launch_ns, launch_tid, call`` of the device's events, sorted by start."""
    calls = events.filter((pl.col("category") == "runtime") & pl.col("correlation").is_not_null())
    calls = calls.select("correlation", call=pl.col("name").cast(pl.String)).unique("correlation", keep="first")
    table = pl.concat(
        [events.select("category", "name", "start_ns", "dur_ns", "correlation"), launch], how="horizontal"
    )
    table = table.filter(pl.col("category").is_in(DEVICE_CATEGORIES))
    table = table.join(calls, on="correlation", how="left", maintain_order="left").sort("start_ns", maintain_order=True)
    return table.with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns"), name=pl.col("name").cast(pl.String))


def _last_ended(device: pl.DataFrame, moment: IntArray) -> pl.Series:
    """Name of the device event that ended last before each moment, null for none; [m]."""
    by_end = device.sort("end_ns")
    slot = np.searchsorted(by_end["end_ns"].to_numpy(), moment, side="right") - 1
    return by_end["name"].gather(pl.Series(slot).replace(-1, None))


def _sync(host: _Host, events: pl.DataFrame, device: pl.DataFrame, end: IntArray) -> dict[str, pl.Series | IntArray]:
    """The synchronising call that was begun last before each idle stretch ended, the operation around it, its copy."""
    name = pl.col("name").cast(pl.String)
    calls = events.filter(pl.col("category").is_in(["runtime", "sync"]) & name.str.contains(SYNC_CALLS))
    calls = calls.sort("start_ns")
    slot = np.searchsorted(calls["start_ns"].to_numpy(), end, side="left") - 1
    nothing = np.full(len(end), -1, dtype=np.int64)
    if calls.is_empty():
        empty = pl.Series([None] * len(end), dtype=pl.String)
        return {"sync_operation": empty, "sync_detail": empty, "sync_ns": nothing, "sync_tid": nothing}
    at = calls[np.maximum(slot, 0)]
    moment = np.where(slot >= 0, at["start_ns"].to_numpy(), -1)
    thread = at["tid"].to_numpy()
    copies = device.filter((pl.col("category") == "copy") & pl.col("launch_ns").is_not_null()).sort("launch_ns")
    copied = np.searchsorted(copies["launch_ns"].to_numpy(), moment, side="right") - 1
    around = enclosing(host.ops, moment, thread)
    begun = np.where(around >= 0, host.ops["start_ns"].to_numpy()[np.maximum(around, 0)] if len(host.ops) else 0, -1)
    launched = copies["launch_ns"].to_numpy()[np.maximum(copied, 0)] if len(copies) else nothing
    own = np.where((copied >= 0) & (around >= 0) & (launched >= begun), copied, -1)
    copy = copies["name"].gather(pl.Series(own).replace(-1, None))
    call = at["name"].cast(pl.String)
    detail = pl.DataFrame({"copy": copy, "call": call}).select(
        pl.when(pl.col("copy").is_null()).then("call").otherwise(pl.col("copy") + ", " + pl.col("call"))
    )
    return {
        "sync_operation": host.operation(moment, thread),
        "sync_detail": detail.to_series(),
        "sync_ns": moment,
        "sync_tid": thread,
    }


def _outside(events: pl.DataFrame, moment: IntArray) -> pl.Series:
    """The range outside the step around each moment, on any thread, null for none; [m]."""
    ranges = outside_ranges(events)
    start = ranges["start_ns"].to_numpy()
    slot = innermost(start, start + ranges["dur_ns"].to_numpy(), moment)
    return ranges["name"].cast(pl.String).gather(pl.Series(slot).replace(-1, None))


def _of_host(idle: pl.DataFrame, host: _Host) -> pl.DataFrame:
    """On a host-only trace idleness is between operations: it goes to the one that ends it."""
    start, end = idle["start_ns"].to_numpy(), idle["end_ns"].to_numpy()
    following = host.next_operation(end).fill_null(NO_OPERATION)
    outside = _outside(host.events, (start + end) // 2)
    is_sync = pl.col("kind") == "sync"
    nothing = np.full(len(idle), -1, dtype=np.int64)
    where = contexts(host.events, nothing, nothing).select("layer", "phase")
    table = idle.with_columns(following=following, outside=outside)
    table = table.with_columns(
        operation=pl.when(pl.col("kind") == "outside").then("outside").otherwise("following"),
        detail=pl.when(is_sync).then(pl.lit("waking up after communication")).otherwise(pl.lit(PYTHON)),
    )
    return pl.concat([table.select("kind", "start_ns", "end_ns", "operation", "detail"), where], how="horizontal")
