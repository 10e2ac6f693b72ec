"""Rows of slices, and what is drawn of them at a resolution.

A row's slices never overlap, so at most ``span / width + 2`` of them are at least ``width`` long: those are listed. The
shorter ones are counted in power-of-two buckets by where they start. Nothing is lost: listed plus counted is all.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
CACHE_FROM_SLICES = 4096


@dataclass(frozen=True, slots=True)
class Shorts:
    """Slices shorter than a bucket, by the bucket they start in; only buckets that hold any, in order."""

    bucket: IntArray
    """Since time 0, not since the view."""
    count: IntArray
    busy_ns: IntArray
    """Their durations summed."""
    longest: IntArray
    """Position in the row of the longest."""


@dataclass(frozen=True, slots=True)
class Level:
    """One resolution of a whole row."""

    longs: IntArray
    """Positions of the slices of at least one bucket."""
    shorts: Shorts


@dataclass(slots=True)
class Row:
    """Slices that don't overlap, sorted by start; times are ns since the timeline's start."""

    start_ns: IntArray
    end_ns: IntArray
    name: npt.NDArray[np.int32]
    """Index into the timeline's names."""
    group: npt.NDArray[np.uint8]
    """Which colour: index into :data:`moescope.views.timeline.colours.SLICE_GROUPS`."""
    event: npt.NDArray[np.int64]
    """Index of the event in its file, plus ``window << 40``."""
    _levels: dict[int, Level] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.start_ns)

    def query(self, first_bucket: int, num_buckets: int, shift: int) -> tuple[IntArray, Shorts]:
        """Positions of long slices that touch the range, and the short ones that start in it.

        The range is ``num_buckets`` buckets of ``2**shift`` ns, beginning with bucket ``first_bucket``.
        """
        low, high = first_bucket << shift, (first_bucket + num_buckets) << shift
        # An empty slice that lies on the border ends there too, and belongs to the range it starts in.
        first = int(min(np.searchsorted(self.end_ns, low, side="right"), np.searchsorted(self.start_ns, low)))
        last = int(np.searchsorted(self.start_ns, high, side="left"))
        if last - first < CACHE_FROM_SLICES:
            return self._level(first, last, shift, first_bucket)
        level = self._levels.get(shift)
        if level is None:
            longs, shorts = self._level(0, len(self), shift, -(1 << 62))
            level = self._levels[shift] = Level(longs, shorts)
        longs = level.longs[np.searchsorted(level.longs, first) : np.searchsorted(level.longs, last)]
        a, b = np.searchsorted(level.shorts.bucket, (first_bucket, first_bucket + num_buckets))
        s = level.shorts
        return longs, Shorts(s.bucket[a:b], s.count[a:b], s.busy_ns[a:b], s.longest[a:b])

    def _level(self, first: int, last: int, shift: int, first_bucket: int) -> tuple[IntArray, Shorts]:
        start, duration = self.start_ns[first:last], self.end_ns[first:last] - self.start_ns[first:last]
        long = duration >= (1 << shift)
        chosen = np.flatnonzero(~long)
        bucket = start[chosen] >> shift
        inside = bucket >= first_bucket
        return np.flatnonzero(long) + first, _count(bucket[inside], duration, chosen[inside], first)


def _count(bucket: IntArray, duration: IntArray, chosen: IntArray, first: int) -> Shorts:
    """``bucket``: ascending, of the slices at ``chosen`` in ``duration``; ``first`` is added to positions."""
    if len(bucket) == 0:
        none = np.zeros(0, dtype=np.int64)
        return Shorts(none, none, none, none)
    begins = np.flatnonzero(np.concatenate(([True], bucket[1:] != bucket[:-1])))
    lasting = duration[chosen]
    count = np.diff(np.concatenate((begins, [len(bucket)])))
    longest = np.maximum.reduceat(lasting, begins)
    at_longest = np.flatnonzero(lasting == np.repeat(longest, count))
    leading = at_longest[np.searchsorted(at_longest, begins)]
    return Shorts(bucket[begins], count, np.add.reduceat(lasting, begins), chosen[leading] + first)


def depths(start_ns: IntArray, end_ns: IntArray) -> IntArray:
    """A row for every slice so that none overlap in a row; slices sorted by start, longer first; [n].

    An empty slice takes room as if it lasted 1 ns.

    Properly nested slices get their nesting depth (those open when one starts). Where slices overlap without nesting,
    each takes the lowest row that is free.
    """
    end_ns = np.maximum(end_ns, start_ns + 1)
    ended = np.searchsorted(np.sort(end_ns), start_ns, side="right")
    depth = np.arange(len(start_ns)) - ended
    order = np.lexsort((start_ns, depth))
    same = depth[order][1:] == depth[order][:-1]
    clash = same & (start_ns[order][1:] < end_ns[order][:-1])
    if depth.size and (clash.any() or depth.min() < 0):
        return _lowest_free(start_ns, end_ns)
    return depth


def _lowest_free(start_ns: IntArray, end_ns: IntArray) -> IntArray:
    free_from: list[int] = []
    rows = np.zeros(len(start_ns), dtype=np.int64)
    for position, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        row = next((r for r, free in enumerate(free_from) if free <= start), len(free_from))
        if row == len(free_from):
            free_from.append(end)
        else:
            free_from[row] = end
        rows[position] = row
    return rows
