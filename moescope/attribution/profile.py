"""Everything later stages need of one rank's trace, and nothing that grows with its events but the segments.

This is the per-rank stage: it reads one rank's events, reduces them, and lets them go, so memory is bounded by
the largest rank and ranks can be profiled in parallel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from moescope.align.collectives import PART_OF_KIND
from moescope.align.context import launches
from moescope.align.instances import instances_of
from moescope.align.steps import step_windows
from moescope.attribution.allocator import AllocatorCalls, allocator_calls
from moescope.attribution.device import DeviceIntervals, device_intervals
from moescope.attribution.gemm.calls import gemm_calls
from moescope.attribution.gemm.tiles import num_multiprocessors
from moescope.attribution.idle import host_state, split_idle
from moescope.attribution.idle_causes import idle_causes
from moescope.attribution.labels import GEMM_LABELS, Label
from moescope.attribution.launch_stats import LaunchStats, launch_stats
from moescope.attribution.memory import MemoryProfile, memory_profile
from moescope.attribution.memory_trades import MemoryTrade, memory_trades
from moescope.attribution.sweep import Segments, partition
from moescope.attribution.unions import DeviceUnions, device_unions
from moescope.trace import RankTrace


@dataclass(frozen=True, slots=True)
class RankProfile:
    """One rank and window, reduced. Local clock.

    ``segments``: ``step, start_ns, end_ns, label, layer, token_bound, instance`` - consecutive pieces that fill each
    step's window exactly; ``instance`` is the row of ``instances`` that a communication piece belongs to, else -1.
    """

    rank: int
    window: int
    host: str
    device: str
    on_gpu: bool
    windows: pl.DataFrame
    has_step_marks: bool
    """Whether the trace marks its steps; else the whole file is step 0."""
    instances: pl.DataFrame
    segments: pl.DataFrame
    unions: DeviceUnions
    memory: MemoryProfile | None
    gemms: pl.DataFrame
    """Matrix operations: ``gemm.calls.SCHEMA``."""
    num_multiprocessors: int | None
    gemm_compute_ns: int
    """Time of the operations or kernels of matrix products by their names, whether their shapes are known or not."""
    num_early_kernels: int
    """Kernels recorded as starting before the host launched them."""
    num_unlinked_kernels: int
    """Kernels without a recorded launch."""
    idle_causes: pl.DataFrame
    """What the device's idle time goes back to: ``idle_causes.SCHEMA``."""
    allocator: AllocatorCalls
    memory_trades: tuple[MemoryTrade, ...]
    launch_stats: LaunchStats | None
    """None on a host-only trace."""


def profile_rank(trace: RankTrace) -> RankProfile:
    """Read and reduce one rank."""
    events = trace.events()
    launch = launches(events)
    windows = step_windows(events, launch["launch_ns"])
    instances = instances_of(trace, events, launch, windows)
    instances = instances.with_columns(part=pl.col("kind").replace_strict(PART_OF_KIND, default="other"))
    device = device_intervals(events, launch, instances)
    segments = _segments(windows, device, events)
    kernels = events["category"].is_in(["kernel"])
    return RankProfile(
        rank=trace.rank,
        window=trace.window,
        host=trace.host or "",
        device=trace.device,
        on_gpu=device.on_gpu,
        windows=windows,
        has_step_marks=_is_marked(events),
        instances=instances,
        segments=segments,
        unions=device_unions(device, _base_ns(trace)),
        memory=memory_profile(trace, events, windows),
        gemms=gemm_calls(events, launch, windows),
        num_multiprocessors=num_multiprocessors(trace),
        gemm_compute_ns=_gemm_compute_ns(device),
        num_early_kernels=int((events["start_ns"] < launch["launch_ns"]).sum()),
        num_unlinked_kernels=int((kernels & launch["launch_ns"].is_null()).sum()),
        idle_causes=idle_causes(events, launch, segments, on_gpu=device.on_gpu),
        allocator=allocator_calls(events, windows),
        memory_trades=memory_trades(events, trace.memory(), segments, windows),
        launch_stats=launch_stats(events, launch, windows),
    )


def _gemm_compute_ns(device: DeviceIntervals) -> int:
    chosen = np.isin(device.label, [int(label) for label in (*GEMM_LABELS, Label.ATTENTION, Label.RECOMPUTE)])
    return int((device.end_ns - device.start_ns)[chosen].sum())


def _base_ns(trace: RankTrace) -> int:
    base = trace.info.get("baseTimeNanoseconds")
    return int(base) if isinstance(base, int | float) else 0


def _is_marked(events: pl.DataFrame) -> bool:
    marks = (pl.col("category") == "annotation") & pl.col("name").cast(pl.String).str.starts_with("ProfilerStep")
    return bool(events.select(marks.any()).item())


def _segments(windows: pl.DataFrame, device: DeviceIntervals, events: pl.DataFrame) -> pl.DataFrame:
    host = host_state(events)
    by_end = np.argsort(device.start_ns, kind="stable")
    parts = []
    for step, low, high in windows.select("step", "start_ns", "end_ns").rows():
        inside = by_end[(device.start_ns[by_end] < high) & (device.end_ns[by_end] > low)]
        pieces = partition(device.start_ns[inside], device.end_ns[inside], device.label[inside], low, high)
        winner = np.where(pieces.winner >= 0, inside[np.maximum(pieces.winner, 0)] if len(inside) else -1, -1)
        pieces = split_idle(Segments(pieces.start_ns, pieces.end_ns, pieces.label, winner), device, host)
        parts.append(_frame(step, pieces, device))
    return pl.concat(parts) if parts else _frame(0, Segments(*(np.zeros(0, dtype=np.int64),) * 4), device)


def _frame(step: int, pieces: Segments, device: DeviceIntervals) -> pl.DataFrame:
    known = pieces.winner >= 0
    at = np.maximum(pieces.winner, 0)
    empty = len(device.start_ns) == 0

    def of(values: npt.NDArray[Any], missing: int) -> npt.NDArray[Any]:
        return np.full(len(at), missing) if empty else np.where(known, values[at], missing)

    return pl.DataFrame(
        {
            "step": np.full(len(at), step, dtype=np.int64),
            "start_ns": pieces.start_ns,
            "end_ns": pieces.end_ns,
            "label": pieces.label.astype(np.int8),
            "layer": of(device.layer, -1).astype(np.int32),
            "token_bound": of(device.token_bound, 0).astype(bool),
            "instance": of(device.instance, -1).astype(np.int64),
        }
    )
