"""Exact partition of a time line by priority: every nanosecond goes to exactly one label."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Segments:
    """A partition of ``[start_ns[0], end_ns[-1]]`` into consecutive pieces.

    ``label[i]`` is the winning label of piece i, or -1 where no interval is active;
    ``winner[i]`` is the index of an interval with that label that is active there, or -1.
    """

    start_ns: IntArray
    end_ns: IntArray
    label: IntArray
    winner: IntArray

    @property
    def duration_ns(self) -> IntArray:
        return self.end_ns - self.start_ns


def partition(start_ns: IntArray, end_ns: IntArray, label: IntArray, low_ns: int, high_ns: int) -> Segments:
    """Partition ``[low_ns, high_ns]`` by the intervals; the smallest label wins where several are active.

    ``start_ns``, ``end_ns``, ``label``: [n] half-open intervals, clipped to the window; empty ones vanish.
    """
    start = np.clip(start_ns, low_ns, high_ns)
    end = np.clip(end_ns, low_ns, high_ns)
    kept = np.flatnonzero(end > start)
    start, end, label = start[kept], end[kept], label[kept]
    edges = np.unique(np.concatenate((start, end, np.array([low_ns, high_ns], dtype=np.int64))))
    num_pieces = len(edges) - 1
    best = np.full(num_pieces, -1, dtype=np.int64)
    winner = np.full(num_pieces, -1, dtype=np.int64)
    for value in np.unique(label)[::-1]:
        mine = np.flatnonzero(label == value)
        mine = mine[np.argsort(start[mine], kind="stable")]
        first = np.searchsorted(edges, start[mine])
        last = np.searchsorted(edges, end[mine])
        active = np.zeros(num_pieces + 1, dtype=np.int64)
        np.add.at(active, first, 1)
        np.add.at(active, last, -1)
        covered = np.cumsum(active[:-1]) > 0
        best[covered] = value
        winner[covered] = kept[_reaching(mine, first, last, num_pieces)[covered]]
    return Segments(edges[:-1], edges[1:], best, winner)


def _reaching(mine: IntArray, first: IntArray, last: IntArray, num_pieces: int) -> IntArray:
    """For each piece, of the intervals begun by then the one that reaches furthest (so it is active if any is)."""
    furthest = np.maximum.accumulate(last) if len(last) else last
    is_record = np.ones(len(last), dtype=bool)
    is_record[1:] = last[1:] > furthest[:-1]
    holder = np.maximum.accumulate(np.where(is_record, np.arange(len(last)), 0))
    slot = np.searchsorted(first, np.arange(num_pieces), side="right") - 1
    return mine[holder[np.maximum(slot, 0)]]


def union_ns(start_ns: IntArray, end_ns: IntArray) -> int:
    """Total length of the union of half-open intervals."""
    if len(start_ns) == 0:
        return 0
    order = np.argsort(start_ns, kind="stable")
    start, end = start_ns[order], np.maximum.accumulate(end_ns[order])
    begun = np.maximum(start[1:], end[:-1])
    return int(end[0] - start[0] + np.maximum(end[1:] - begun, 0).sum())
