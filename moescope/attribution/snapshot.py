"""A memory snapshot taken apart: what is held and by whom, what is lost to fragmentation, what the driver was asked.

Of the device that holds most. With the allocator's history its peak is found by going back from the end: the bytes
allocated before the first action are those at the end less what the actions changed. A retry is what torch's allocator
does when the driver refuses: it gives cached segments back and asks again, so frees of segments directly followed by a
request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl

from moescope.attribution.snapshot_owners import UNKNOWN, owner, place
from moescope.trace.snapshots import Snapshot

LIVE = ("active_allocated",)
PENDING = ("active_awaiting_free", "active_pending_free")
"""Freed by the program, but another stream may still use it; torch's code and its documentation differ in the name."""
MOST_PLACES = 12
BEFORE_HISTORY = "before the recorded history"


@dataclass(frozen=True, slots=True)
class SnapshotUse:
    """Bytes of one device. ``reserved = allocated + pending + free_whole + free_split``."""

    rank: int
    file: str
    device: int
    reserved_bytes: int
    allocated_bytes: int
    pending_bytes: int
    free_whole_bytes: int
    """In segments that hold nothing: the allocator can give them back."""
    free_split_bytes: int
    """Between blocks in use: reserved, and only for requests that fit; what fragmentation costs."""
    largest_free_bytes: int
    rounding_bytes: int
    """Allocated beyond what was asked for."""
    num_segments: int
    allocated_by_category: dict[str, int]
    """At the dump."""
    peak_bytes: int | None
    """Highest within the recorded history; None without one."""
    peak_by_category: dict[str, int]
    peak_by_place: dict[str, int]
    """The largest places that asked for what was live at the peak."""
    num_driver_allocations: int
    num_driver_frees: int
    num_retries: int
    num_out_of_memory: int
    num_actions: int


def snapshot_use(snapshot: Snapshot) -> SnapshotUse | None:
    """The snapshot's device that reserves most; None where it holds no segment."""
    if snapshot.segments.is_empty():
        return None
    totals = snapshot.segments.group_by("device").agg(pl.col("total_size").sum())
    device, reserved = totals.sort(["total_size", "device"], descending=[True, False]).row(0)
    blocks = snapshot.blocks.filter(pl.col("device") == device)
    actions = snapshot.actions.filter(pl.col("device") == device)
    live, pending = (blocks.filter(pl.col("state").is_in(states)) for states in (LIVE, PENDING))
    free = blocks.filter(~pl.col("state").is_in([*LIVE, *PENDING]))
    alone = pl.len().over("segment") == 1
    sizes = blocks.with_columns(is_alone=alone).filter(~pl.col("state").is_in([*LIVE, *PENDING]))
    whole = int(sizes.filter("is_alone")["size"].sum())
    names = _Names(snapshot)
    peak = _peak(blocks, actions, names)
    kinds = Counter(actions["action"])
    return SnapshotUse(
        rank=snapshot.rank,
        file=snapshot.file,
        device=int(device),
        reserved_bytes=int(reserved),
        allocated_bytes=int(live["size"].sum()),
        pending_bytes=int(pending["size"].sum()),
        free_whole_bytes=whole,
        free_split_bytes=int(free["size"].sum()) - whole,
        largest_free_bytes=int(free["size"].max() or 0),  # type: ignore[arg-type]
        rounding_bytes=int((live["size"] - live["requested_size"]).clip(0).sum()),
        num_segments=int((snapshot.segments["device"] == device).sum()),
        allocated_by_category=_summed(names.categories(live), live["size"]),
        peak_bytes=peak[0] if peak else None,
        peak_by_category=peak[1] if peak else {},
        peak_by_place=peak[2] if peak else {},
        num_driver_allocations=kinds["segment_alloc"] + kinds["segment_map"],
        num_driver_frees=kinds["segment_free"] + kinds["segment_unmap"],
        num_retries=num_retries(actions["action"].to_list()),
        num_out_of_memory=kinds["oom"],
        num_actions=len(actions),
    )


class _Names:
    """Category and place of every stack, found once per stack; metadata that the program set goes before."""

    def __init__(self, snapshot: Snapshot):
        self._owners = [owner(stack) for stack in snapshot.stacks]
        self._places = [place(stack) for stack in snapshot.stacks]

    def categories(self, rows: pl.DataFrame) -> list[str]:
        pairs = rows.select("frames", "metadata").rows()
        return [metadata or (self._owners[at] if at >= 0 else UNKNOWN) for at, metadata in pairs]

    def places(self, rows: pl.DataFrame) -> list[str]:
        return [self._places[at] if at >= 0 else UNKNOWN for at in rows["frames"]]


def _summed(names: Sequence[str], sizes: pl.Series) -> dict[str, int]:
    """Sizes by name, largest first."""
    sums: dict[str, int] = {}
    for name, size in zip(names, sizes, strict=True):
        sums[name] = sums.get(name, 0) + size
    return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))


def _peak(
    blocks: pl.DataFrame, actions: pl.DataFrame, names: _Names
) -> tuple[int, dict[str, int], dict[str, int]] | None:
    """(bytes allocated at the history's highest point, the same by category, by place); None without a history."""
    sign = {"alloc": 1, "free_requested": -1}
    moves = actions.filter(pl.col("action").is_in(list(sign))).with_row_index("turn")
    if moves.is_empty():
        return None
    change = moves["action"].replace_strict(sign, return_dtype=pl.Int64).to_numpy() * moves["size"].to_numpy()
    at_end = int(blocks.filter(pl.col("state").is_in(LIVE))["size"].sum())
    totals = at_end - int(change.sum()) + np.concatenate(([0], np.cumsum(change)))
    turn = int(np.argmax(totals))
    live = _live_at(blocks, moves, turn)
    peak = int(totals[turn])
    by_category, by_place = (_summed(of(live), live["size"]) for of in (names.categories, names.places))
    rest = peak - sum(by_category.values())
    if rest > 0:
        by_category[BEFORE_HISTORY] = rest
    return peak, by_category, dict(list(by_place.items())[:MOST_PLACES])


def _live_at(blocks: pl.DataFrame, moves: pl.DataFrame, turn: int) -> pl.DataFrame:
    """``size, frames, metadata`` of blocks live after the first ``turn`` moves, as far as the snapshot knows them.

    Those allocated in the history and not yet freed, and those still there at the end that the history did not touch.
    """
    columns = ["address", "size", "frames", "metadata"]
    before = moves.head(turn)
    last = before.group_by("address", maintain_order=True).agg(pl.all().sort_by("turn").last())
    inside = last.filter(pl.col("action") == "alloc").select(columns)
    kept = blocks.filter(pl.col("state").is_in(LIVE)).join(moves, on="address", how="anti").select(columns)
    return pl.concat([inside, kept])


def num_retries(actions: Sequence[str]) -> int:
    """Runs of segments given back that a request to the driver directly follows."""
    return sum(
        one in ("segment_free", "segment_unmap") and following in ("segment_alloc", "segment_map")
        for one, following in pairwise(actions)
    )
