"""Which nested range encloses a moment: the link from launches to phases, operations and collectives."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


def innermost(start_ns: IntArray, end_ns: IntArray, query_ns: IntArray) -> IntArray:
    """Index of the innermost range that contains each moment, -1 where none does.

    ``start_ns``, ``end_ns``: [n] ranges of one thread, nested or disjoint. ``query_ns``: [q]. A moment at which
    one range ends and the next begins belongs to the next, not to a child of the first.
    Ranges are peeled level by level (a level holds ranges that no earlier-starting remaining one
    contains), so the cost is O((n + q) log n) per nesting depth and nothing is done per range in Python.
    """
    found = np.full(len(query_ns), -1, dtype=np.int64)
    if len(start_ns) == 0:
        return found
    order = np.lexsort((-end_ns, start_ns))
    while len(order):
        ends = end_ns[order]
        reach = np.maximum.accumulate(ends)
        outer = np.ones(len(order), dtype=bool)
        outer[1:] = start_ns[order][1:] >= reach[:-1]
        level = order[outer]
        slot = np.searchsorted(start_ns[level], query_ns, side="right") - 1
        inner = level[np.maximum(slot, 0)]
        hit = (slot >= 0) & (query_ns <= end_ns[inner])
        hit &= (found < 0) | (start_ns[inner] >= start_ns[np.maximum(found, 0)])
        found[hit] = inner[hit]
        order = order[~outer]
    return found


def outermost(start_ns: IntArray, end_ns: IntArray) -> npt.NDArray[np.bool_]:
    """Mask of the ranges that no other range contains, [n]; of equal ranges the first is kept."""
    keep = np.zeros(len(start_ns), dtype=bool)
    if len(start_ns) == 0:
        return keep
    order = np.lexsort((-end_ns, start_ns))
    reach = np.maximum.accumulate(end_ns[order])
    outer = np.ones(len(order), dtype=bool)
    outer[1:] = end_ns[order][1:] > reach[:-1]
    keep[order] = outer
    return keep


def outermost_by_thread(start_ns: IntArray, end_ns: IntArray, thread: IntArray) -> npt.NDArray[np.bool_]:
    """Mask of the ranges that no other range of their thread contains, [n]."""
    keep = np.zeros(len(start_ns), dtype=bool)
    for one in np.unique(thread):
        mine = np.flatnonzero(thread == one)
        keep[mine] = outermost(start_ns[mine], end_ns[mine])
    return keep
