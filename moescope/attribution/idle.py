"""Why a device was idle: each idle stretch split by what the host was doing before the next launch.

For a stretch [a, b] and the device event that ends it, launched at L:

* [a, L] when L > a: the device waited for the host. ``sync`` if a synchronising call had just drained the queue (it
  was open at a, or ran between a and L), ``outside`` if the host was loading data, checkpointing or collecting
  garbage, else ``host_launch``. Kernels of a captured graph may carry no launch: then a launch of a graph in the
  stretch is taken for theirs.
* [max(a, L), b]: already launched. ``gap`` when short or on the stream that ran last (launch latency), else
  ``dependency`` (the event waited for another stream).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from moescope.align.ranges import IntArray, innermost
from moescope.attribution.device import DeviceIntervals
from moescope.attribution.labels import Label
from moescope.attribution.sweep import Segments

SYNC_CALLS = (
    r"(Stream|Device|Event|Context|Ctx)Synchronize$|^(cuda|hip)Memcpy$|^cudaMemcpyAsync_blocking|^aclrtSynchronize"
)
OUTSIDE_RANGES = (
    r"(?i)dataloader|data_loader|next_batch|get_batch|checkpoint|save_state|garbage|\bgc\b|wait_for_batch|evaluat"
)
INSIDE_RANGES = r"evaluate_function|CheckpointFunction|CheckpointWrapper|checkpoint_wrapped"
"""The backward pass and activation checkpoints, whose names say the same of other things."""
GRAPH_LAUNCH = r"GraphLaunch"
SHORT_GAP_NS = 10_000
"""Launch latency and event waits up to this length count as gaps."""


@dataclass(frozen=True, slots=True)
class HostState:
    """Times at which the host synchronised or worked outside the step, sorted by start, ns."""

    sync_start_ns: IntArray
    sync_end_ns: IntArray
    outside_start_ns: IntArray
    outside_end_ns: IntArray
    graph_launch_ns: IntArray
    """Starts of launches of captured graphs, whose kernels may carry no launch of their own."""


def host_state(events: pl.DataFrame) -> HostState:
    """The host's synchronising calls and its ranges outside the step."""
    name = pl.col("name").cast(pl.String)
    sync = events.filter(pl.col("category").is_in(["runtime", "sync"]) & name.str.contains(SYNC_CALLS)).sort("start_ns")
    outside = outside_ranges(events)
    graphs = events.filter((pl.col("category") == "runtime") & name.str.contains(GRAPH_LAUNCH)).sort("start_ns")
    return HostState(*_span(sync), *_span(outside), graphs["start_ns"].to_numpy())


def outside_ranges(events: pl.DataFrame) -> pl.DataFrame:
    """The host's ranges outside the step, sorted by start."""
    name = pl.col("name").cast(pl.String)
    is_outside = name.str.contains(OUTSIDE_RANGES) & ~name.str.contains(INSIDE_RANGES)
    return events.filter(pl.col("category").is_in(["annotation", "cpu_op"]) & is_outside).sort("start_ns")


def _span(events: pl.DataFrame) -> tuple[IntArray, IntArray]:
    start = events["start_ns"].to_numpy()
    return start, start + events["dur_ns"].to_numpy()


def split_idle(segments: Segments, device: DeviceIntervals, host: HostState) -> Segments:
    """The same partition with every idle piece (label -1) labelled, split where its reason changes."""
    idle = np.flatnonzero(segments.label < 0)
    if len(idle) == 0:
        return segments
    start, end = segments.start_ns[idle], segments.end_ns[idle]
    if device.on_gpu:
        cut, before, after = _gpu_reason(start, end, segments.winner[np.maximum(idle - 1, 0)], device, host)
    else:
        cut, before, after = _host_reason(start, end, segments, idle, host)
    first = segments.label.copy()
    first[idle] = before
    first_end = segments.end_ns.copy()
    first_end[idle] = cut
    pieces = (
        np.concatenate((segments.start_ns, cut)),
        np.concatenate((first_end, end)),
        np.concatenate((first, after)),
        np.concatenate((segments.winner, np.full(len(idle), -1))),
    )
    order = np.argsort(pieces[0], kind="stable")
    kept = order[pieces[1][order] > pieces[0][order]]
    return Segments(*(piece[kept] for piece in pieces))


def _gpu_reason(
    start: IntArray, end: IntArray, previous: IntArray, device: DeviceIntervals, host: HostState
) -> tuple[IntArray, IntArray, IntArray]:
    """(cut, label of [start, cut], label of [cut, end]) of each idle stretch; ``previous``: what ran before, or -1."""
    order = np.argsort(device.start_ns, kind="stable")
    is_work = device.label[order] != Label.ALLOCATOR
    order = order[is_work]
    slot = np.searchsorted(device.start_ns[order], end, side="left")
    if len(order) == 0:  # nothing of the device's own, such as allocator calls alone
        return end, np.full(len(end), Label.OUTSIDE), np.full(len(end), Label.OUTSIDE)
    has_next = slot < len(order)
    following = order[np.minimum(slot, len(order) - 1)]
    launched = np.where(has_next, device.launch_ns[following], np.iinfo(np.int64).max)
    launched = np.where(launched < 0, _graph_launch(start, end, host), launched)
    unknown = has_next & (launched < 0)
    cut = np.where(unknown, start, np.clip(launched, start, end))
    reason = _host_reason_at(start, cut, host)
    same_stream = (previous >= 0) & (device.stream[np.maximum(previous, 0)] == device.stream[following])
    is_gap = (end - cut <= SHORT_GAP_NS) | same_stream | (cut > start)
    after = np.where(is_gap, Label.GAP, Label.DEPENDENCY)
    before = np.where(has_next, reason, Label.OUTSIDE)
    return cut, before, after


def _graph_launch(start: IntArray, end: IntArray, host: HostState) -> IntArray:
    """The last launch of a graph within each stretch, -1 for none; [n]. It may have launched what ends the stretch."""
    if len(host.graph_launch_ns) == 0:
        return np.full(len(start), -1, dtype=np.int64)
    last = np.searchsorted(host.graph_launch_ns, end, side="left") - 1
    moment = host.graph_launch_ns[np.maximum(last, 0)]
    return np.where((last >= 0) & (moment >= start), moment, -1)


def _host_reason_at(start: IntArray, launched: IntArray, host: HostState) -> IntArray:
    """Why the host had not launched yet between ``start`` and ``launched``; [n]."""
    open_sync = innermost(host.sync_start_ns, host.sync_end_ns, start) >= 0
    begun = np.searchsorted(host.sync_start_ns, launched) - np.searchsorted(host.sync_start_ns, start)
    outside = innermost(host.outside_start_ns, host.outside_end_ns, (start + launched) // 2) >= 0
    return np.where(outside, Label.OUTSIDE, np.where(open_sync | (begun > 0), Label.SYNC, Label.HOST_LAUNCH))


def _host_reason(
    start: IntArray, end: IntArray, segments: Segments, idle: IntArray, host: HostState
) -> tuple[IntArray, IntArray, IntArray]:
    """On a host-only trace: the wake-up after communication is synchronisation, the rest is the host's own code."""
    outside = innermost(host.outside_start_ns, host.outside_end_ns, (start + end) // 2) >= 0
    previous = np.where(idle > 0, segments.label[np.maximum(idle - 1, 0)], -1)
    after_comm = np.isin(previous, (Label.ALL_TO_ALL, Label.REDUCTION, Label.OTHER_COMM))
    reason = np.where(outside, Label.OUTSIDE, np.where(after_comm, Label.SYNC, Label.HOST_LAUNCH))
    return end, reason, reason
