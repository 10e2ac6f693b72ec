"""What recomputation and offloading save in memory, and what they cost.

Recomputation: bytes that the backward pass allocates while it repeats forward work and that outlive the repetition,
because something else frees them: without it they would have been kept since the forward pass. Its cost is the
exposed time of the repeated work. Offloading: large copies to the host whose size comes back in the same step; its
cost is the exposed time of copies.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from moescope.align.steps import assign_steps
from moescope.attribution.gemm.recompute import recomputed
from moescope.attribution.labels import Label

LARGE_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class MemoryTrade:
    """Sums over the rank's steps. ``kind``: ``recompute`` or ``offload``."""

    kind: str
    saved_bytes: int
    cost_ns: int
    num_steps: int


def memory_trades(
    events: pl.DataFrame, memory: pl.DataFrame, segments: pl.DataFrame, windows: pl.DataFrame
) -> tuple[MemoryTrade, ...]:
    """Those that the trace shows. ``memory``: ``RankTrace.memory()``; ``segments``: ``RankProfile.segments``."""
    found = [
        MemoryTrade("recompute", _recomputed_bytes(events, memory, windows), _spent(segments, Label.RECOMPUTE), 0),
        MemoryTrade("offload", _offloaded_bytes(events, windows), _spent(segments, Label.COPY), 0),
    ]
    steps = len(windows)
    return tuple(MemoryTrade(t.kind, t.saved_bytes, t.cost_ns, steps) for t in found if t.saved_bytes)


def _spent(segments: pl.DataFrame, label: Label) -> int:
    mine = segments.filter(pl.col("label") == int(label))
    return int((mine["end_ns"] - mine["start_ns"]).sum())


def _recomputed_bytes(events: pl.DataFrame, memory: pl.DataFrame, windows: pl.DataFrame) -> int:
    known = memory.drop_nulls(["addr", "bytes"])
    on_gpu = known.filter(pl.col("device_type") != 0)
    known = (on_gpu if len(on_gpu) else known).sort("ts_ns")
    if known.is_empty():
        return 0
    again = recomputed(events, known["ts_ns"].to_numpy(), known["tid"].to_numpy())
    rows = known.select("addr", "bytes", "ts_ns").with_columns(
        again=pl.Series(again), step=assign_steps(known["ts_ns"], windows)
    )
    following = pl.col("again", "bytes").shift(-1).over("addr")
    rows = rows.with_columns(following.name.prefix("next_"))
    freed_by_itself = (pl.col("next_bytes") < 0) & pl.col("next_again")
    kept = rows.filter((pl.col("bytes") > 0) & pl.col("again") & ~freed_by_itself.fill_null(False))
    return int(kept.drop_nulls("step")["bytes"].sum())


def _offloaded_bytes(events: pl.DataFrame, windows: pl.DataFrame) -> int:
    copies = events.filter((pl.col("category") == "copy") & (pl.col("bytes") >= LARGE_COPY_BYTES))
    copies = copies.with_columns(step=assign_steps(copies["start_ns"], windows)).drop_nulls("step")
    name = pl.col("name").cast(pl.String)
    key = ["step", "bytes"]
    out = copies.filter(name.str.contains("DtoH|D2H|DeviceToHost"))
    back = copies.filter(name.str.contains("HtoD|H2D|HostToDevice"))
    out = out.group_by(key).agg(out=pl.len(), left_ns=pl.col("start_ns").min())
    back = back.group_by(key).agg(back=pl.len(), came_ns=pl.col("start_ns").max())
    pairs = out.join(back, on=key).filter(pl.col("came_ns") > pl.col("left_ns"))
    return int(pairs.select((pl.min_horizontal("out", "back") * pl.col("bytes")).sum()).item())
