"""Our own events under the rules of HolisticTraceAnalysis, one rule after another.

Its figures differ from ours where its rules do, so each rule is applied to our events in turn, and what changes is what
that rule explains. Where all of them together give its figure to the microsecond, the difference is explained in full.
Times here are float64 microseconds from the trace's base time, as that tool holds them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from moescope.attribution.unions import microseconds

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

COMMUNICATION, MEMORY, COMPUTE, OTHER = range(4)
KIND = {"communication": COMMUNICATION, "wait": COMMUNICATION, "copy": MEMORY, "compute": COMPUTE}
COMMUNICATION_NAME = r"^nccl.*Kernel"
MEMORY_NAME = r"^Memcpy|^Memset|^dma"
NEITHER_NAME = r"Memcpy|^Memset|Sync"
STEP_MARK = "ProfilerStep"
SHORT_GAP_US = 30.0
"""Its threshold is given as 30 ns and compared with microseconds."""


@dataclass(frozen=True, slots=True)
class DeviceEvents:
    """[n] each, sorted by start."""

    start: FloatArray
    end: FloatArray
    kind: IntArray
    by_name: IntArray
    """The kind by that tool's rules of names."""
    on_device: BoolArray
    """False for host ranges that were recorded with a stream."""
    stream: IntArray
    launch: FloatArray
    """Start of the runtime call, NaN where none is recorded."""

    def only(self, kept: BoolArray) -> DeviceEvents:
        """Those where ``kept``."""
        return DeviceEvents(*(getattr(self, name)[kept] for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Figures:
    """Device time, microseconds; ``overlap_percent``: share of communication beside compute, None without any."""

    total: float
    idle: float
    compute: float
    non_compute: float
    overlap_percent: float | None


@dataclass(frozen=True, slots=True)
class Stage:
    """Our figures once this rule and those before it are applied; ``why`` says what the rule is."""

    rule: str
    why: str
    figures: Figures


def stages(events: pl.DataFrame, base_ns: int) -> tuple[list[Stage], DeviceEvents]:
    """(figures under no rule, one, two, ...; the device's events that are left under all of them).

    ``events``: the rank's events; ``base_ns``: the trace's base time. Only rules that change something are
    listed; empty where nothing is left.
    """
    every = streamed_events(events, base_ns)
    device = every.only(every.on_device)
    found = [Stage("", "", figures(device))] if len(device.start) else []
    for rule, why, left in _applied(every, device, _step_marks(events, base_ns), _has_fractions(events, base_ns)):
        device = left.only(left.on_device)
        if found and len(left.start) and (changed := figures(left)) != found[-1].figures:
            found.append(Stage(rule, why, changed))
    return found, device


def _applied(
    every: DeviceEvents, device: DeviceEvents, marks: FloatArray, has_fractions: bool
) -> Iterator[tuple[str, str, DeviceEvents]]:
    """(rule, why, what is left) of each rule that changes something, each on top of those before it."""
    left = device
    if len(every.start) > len(device.start):
        left, count = every, len(every.start) - len(device.start)
        yield "streams", f"{count} host ranges that record a stream count as device work", left
    if np.any(left.by_name != left.kind):
        foreign = int(np.sum((left.kind == COMMUNICATION) & (left.by_name != COMMUNICATION)))
        left = replace(left, kind=left.by_name)
        yield "names", _NAMES.format(foreign), left
    if len(marks) > 1 and np.isnan(left.launch).any():
        unlinked = np.isnan(left.launch)
        left = left.only(~unlinked)
        yield "unlinked", f"{int(unlinked.sum())} device events without a recorded launch are dropped", left
    if len(marks) > 1 and np.any(left.launch >= marks.max()):
        late = left.launch >= marks.max()
        left = left.only(~late)
        yield "last step", f"the last step is dropped: {int(late.sum())} device events launched in it", left
    if has_fractions:
        left = replace(left, start=np.ceil(left.start), end=np.floor(left.end))
        yield "rounding", "starts are rounded up and ends down to whole microseconds", left


_NAMES = (
    "kinds follow names alone: {} communication kernels not named nccl*Kernel* count as compute, and kernels named "
    "after copies or synchronisation as neither"
)


def _has_fractions(events: pl.DataFrame, base_ns: int) -> bool:
    since_base = events["start_ns"].to_numpy() - base_ns
    return bool(np.any(since_base % 1000) or np.any(events["dur_ns"].to_numpy() % 1000))


def streamed_events(events: pl.DataFrame, base_ns: int) -> DeviceEvents:
    """Everything that records a stream, sorted by start."""
    table = events.filter(pl.col("stream").is_not_null() & (pl.col("category") != "runtime"))
    calls = events.filter((pl.col("category") == "runtime") & pl.col("correlation").is_not_null())
    calls = calls.select("correlation", launch_ns="start_ns").unique("correlation", keep="first")
    table = table.join(calls, on="correlation", how="left", maintain_order="left").sort("start_ns", maintain_order=True)
    name = pl.col("name").cast(pl.String)
    by_name = (
        pl.when(name.str.contains(COMMUNICATION_NAME)).then(COMMUNICATION)
        .when(name.str.contains(MEMORY_NAME)).then(MEMORY)
        .when(name.str.contains(NEITHER_NAME)).then(OTHER)
        .otherwise(COMPUTE)
    )  # fmt: skip
    named = table.select(by_name.cast(pl.Int64)).to_series().to_numpy()
    on_device = table["category"].is_in(["kernel", "copy", "memset"]).to_numpy()
    ours = table["kind"].cast(pl.String).replace_strict(KIND, default=OTHER, return_dtype=pl.Int64).to_numpy()
    start = microseconds(table["start_ns"].to_numpy() - base_ns)
    return DeviceEvents(
        start=start,
        end=start + microseconds(table["dur_ns"].to_numpy()),
        kind=np.where(on_device, ours, named),
        by_name=named,
        on_device=on_device,
        stream=table["stream"].to_numpy(),
        launch=(table["launch_ns"] - base_ns).cast(pl.Float64).fill_null(float("nan")).to_numpy() / 1000,
    )


def _step_marks(events: pl.DataFrame, base_ns: int) -> FloatArray:
    """Starts of the steps' marks, those on the device among them."""
    is_mark = pl.col("name").cast(pl.String).str.contains(STEP_MARK, literal=True)
    marks = events.filter(pl.col("category").is_in(["annotation", "gpu_annotation"]) & is_mark)
    return microseconds(marks["start_ns"].to_numpy() - base_ns)


def figures(device: DeviceEvents) -> Figures:
    """Device time by kind: unions over streams, ``total`` from the first start to the last end."""
    begin, finish = merged(device.start, device.end)
    total = float(finish[-1] - begin[0])
    busy = float((finish - begin).sum())
    compute = merged_of(device, COMPUTE)
    communication = merged_of(device, COMMUNICATION)
    compute_us, communication_us = (float((ends - starts).sum()) for starts, ends in (compute, communication))
    overlap = 100 * _both(compute, communication) / communication_us if communication_us > 0 else None
    return Figures(total, total - busy, compute_us, busy - compute_us, overlap)


def merged_of(device: DeviceEvents, kind: int) -> tuple[FloatArray, FloatArray]:
    """The maximal intervals of one kind."""
    return merged(device.start[device.kind == kind], device.end[device.kind == kind])


def _both(one: tuple[FloatArray, FloatArray], other: tuple[FloatArray, FloatArray]) -> float:
    """Time at which an interval of each is open, by a sweep over their ends."""
    moment = np.concatenate((*one, *other))
    change = np.repeat([1, -1, 2, -2], [len(one[0]), len(one[1]), len(other[0]), len(other[1])])
    order = np.argsort(moment, kind="stable")
    is_both = np.cumsum(change[order])[:-1] == 3
    return float(np.diff(moment[order])[is_both].sum())


def merged(start: FloatArray, end: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The maximal intervals that the given ones, sorted by start, cover. Rounding may leave one with its end before
    its start; its negative length counts, as in that tool."""
    if len(start) == 0:
        return start, end
    reach = np.maximum.accumulate(end)
    first = np.flatnonzero(np.concatenate(([True], start[1:] > reach[:-1])))
    return start[first], np.maximum.reduceat(end, first)


def idle_by_stream(device: DeviceEvents) -> dict[int, dict[str, float]]:
    """Gaps between consecutive operations of each stream by that tool's kinds, microseconds."""
    found = {}
    for stream in np.unique(device.stream):
        mine = device.only(device.stream == stream)
        order = np.argsort(mine.start, kind="stable")
        start, end, launch = mine.start[order][1:], mine.end[order][:-1], mine.launch[order][1:]
        gap = start - end
        host = launch > end
        short = ~host & (gap < SHORT_GAP_US)
        found[int(stream)] = {
            "host_wait": float(gap[host].sum()),
            "kernel_wait": float(gap[short].sum()),
            "other": float(gap[~host & ~short].sum()),
        }
    return found


def queue_by_stream(device: DeviceEvents) -> dict[int, tuple[float, int]]:
    """(mean, most) of the operations launched and not yet begun, of each stream over the moments of change."""
    linked = device.only(~np.isnan(device.launch))
    found = {}
    for stream in np.unique(linked.stream):
        mine = linked.only(linked.stream == stream)
        moment = np.concatenate((mine.launch, mine.start))
        change = np.repeat([1, -1], len(mine.start))
        length = np.cumsum(change[np.argsort(moment, kind="stable")])
        found[int(stream)] = (float(length.mean()), int(length.max()))
    return found
