"""One rank in one line: which part of its step every moment belongs to, and exactly how long in any stretch of time.

The pieces are those of the attribution, so a strip adds up to the parts that every other page shows. Levels hold the
time of each class in ever wider power-of-two buckets, so that a tile reads about as many cells as it has pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moescope.views.palette import GROUPS

IntArray = npt.NDArray[np.int64]

CLASSES: tuple[str, ...] = tuple(group.key for group in GROUPS)
"""The palette's groups in stacking order; a class is an index into it."""
ALL = tuple(range(len(CLASSES)))
NOTHING = 255
"""The class of time outside the profiled steps."""
PIECES_PER_BUCKET = 4
LEAST_BUCKETS = 256
LEVEL_STEP = 2
WIDEST_SHIFT = 31
"""Buckets of a level are narrower than 2**32 ns, so their times fit into 32 bits."""


@dataclass(frozen=True, slots=True)
class Level:
    """Time of each class in buckets of ``2**shift`` ns from 0 on; ``busy_ns``: uint32 [buckets, columns]."""

    shift: int
    busy_ns: npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Strip:
    """Consecutive pieces of one rank's time with what it did in each; ns since the timeline's start."""

    edges_ns: IntArray
    """[m + 1]."""
    class_of: npt.NDArray[np.uint8]
    """[m]: index into :data:`CLASSES`, or NOTHING."""
    levels: tuple[Level, ...]
    """From narrow to wide."""
    columns: tuple[int, ...] = ALL
    """The classes that the levels' columns stand for."""

    @property
    def used(self) -> list[int]:
        """The classes that occur."""
        return [int(kind) for kind in np.unique(self.class_of) if kind < len(CLASSES)]

    def busy(self, low_ns: int, high_ns: int) -> tuple[int, ...]:
        """Time of each class in ``[low_ns, high_ns)``, exact."""
        first, last = self._touched(low_ns, high_ns)
        length = np.diff(np.clip(self.edges_ns[first : last + 1], low_ns, high_ns))
        spent = np.zeros(len(CLASSES), dtype=np.int64)
        kinds = self.class_of[first:last]
        inside = kinds < len(CLASSES)
        np.add.at(spent, kinds[inside], length[inside])
        return tuple(spent.tolist())

    def shares(self, first_bucket: int, num_buckets: int, shift: int) -> npt.NDArray[np.uint8]:
        """Share of each bucket that each class takes, 0 to 255; at least 1 where there is anything; [columns, n]."""
        fitting = [level for level in self.levels if level.shift <= shift]
        if fitting:
            busy = _summed(fitting[-1], first_bucket, num_buckets, shift)
        else:
            busy = self._counted(first_bucket, num_buckets, shift)
        shares = np.rint(busy.T * (255.0 / (1 << shift)))
        return np.where(busy.T > 0, np.maximum(shares, 1), 0).astype(np.uint8)

    def _touched(self, low_ns: int, high_ns: int) -> tuple[int, int]:
        first = max(int(np.searchsorted(self.edges_ns, low_ns, side="right")) - 1, 0)
        last = min(int(np.searchsorted(self.edges_ns, high_ns, side="left")), len(self.class_of))
        return first, max(first, last)

    def _counted(self, first_bucket: int, num_buckets: int, shift: int) -> IntArray:
        """The same from the pieces; [n, columns]."""
        low, high = first_bucket << shift, (first_bucket + num_buckets) << shift
        first, last = self._touched(low, high)
        edges = np.clip(self.edges_ns[first : last + 1], low, high)
        bounds = low + (np.arange(num_buckets + 1, dtype=np.int64) << shift)
        return count_busy(edges, self.class_of[first:last], bounds, self.columns)


NO_PIECES = Strip(np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.uint8), ())
"""Of a rank without a profiled step."""


def count_busy(
    edges_ns: IntArray, class_of: npt.NDArray[np.uint8], bounds_ns: IntArray, columns: tuple[int, ...]
) -> IntArray:
    """Time of each class of ``columns`` between consecutive bounds; int64 [len(bounds_ns) - 1, columns]."""
    num_pieces = len(class_of)
    if num_pieces == 0:
        return np.zeros((len(bounds_ns) - 1, len(columns)), dtype=np.int64)
    column_of = np.full(NOTHING + 1, len(columns), dtype=np.int64)  # all other classes go to one column more
    column_of[list(columns)] = np.arange(len(columns))
    column = column_of[class_of]
    before = np.zeros((num_pieces + 1, len(columns) + 1), dtype=np.int64)
    before[np.arange(1, num_pieces + 1), column] = np.diff(edges_ns)
    np.cumsum(before, axis=0, out=before)
    at_ns = np.clip(bounds_ns, edges_ns[0], edges_ns[-1])
    piece = np.clip(np.searchsorted(edges_ns, at_ns, side="right") - 1, 0, num_pieces - 1)
    spent = before[piece]
    spent[np.arange(len(piece)), column[piece]] += at_ns - edges_ns[piece]
    busy: IntArray = np.diff(spent, axis=0)[:, :-1]
    return busy


def _summed(level: Level, first_bucket: int, num_buckets: int, shift: int) -> IntArray:
    """A level's cells summed to wider buckets; [n, columns]."""
    factor = 1 << (shift - level.shift)
    low, high = first_bucket * factor, (first_bucket + num_buckets) * factor
    inside = level.busy_ns[max(low, 0) : max(high, 0)]
    busy = np.zeros((num_buckets, level.busy_ns.shape[1]), dtype=np.int64)
    if len(inside) == 0:
        return busy
    begin = max(low, 0) // factor - first_bucket
    starts = np.arange(0, len(inside), factor)
    busy[begin : begin + len(starts)] = np.add.reduceat(inside, starts, axis=0, dtype=np.int64)
    return busy


def make_strip(start_ns: IntArray, end_ns: IntArray, class_of: npt.NDArray[np.uint8]) -> Strip:
    """The strip of pieces that don't overlap; ``start_ns, end_ns, class_of``: [n] in time order, from 0 on."""
    if len(start_ns) == 0:
        return NO_PIECES
    edges = np.unique(np.concatenate((start_ns, end_ns)))
    kinds = np.full(len(edges) - 1, NOTHING, dtype=np.uint8)
    kinds[np.searchsorted(edges, start_ns)] = class_of
    changes = np.flatnonzero(np.concatenate(([True], kinds[1:] != kinds[:-1])))
    edges, kinds = np.concatenate((edges[changes], edges[-1:])), kinds[changes]
    return Strip(edges, kinds, _levels(edges, kinds))


def _levels(edges_ns: IntArray, class_of: npt.NDArray[np.uint8]) -> tuple[Level, ...]:
    length = int(edges_ns[-1]) + 1
    shift = 0
    while length >> shift > max(len(class_of) // PIECES_PER_BUCKET, LEAST_BUCKETS):
        shift += 1
    if shift > WIDEST_SHIFT:
        return ()
    busy = count_busy(edges_ns, class_of, np.arange((length >> shift) + 2, dtype=np.int64) << shift, ALL)
    levels = [Level(shift, busy.astype(np.uint32))]
    while len(busy) > LEAST_BUCKETS and shift + LEVEL_STEP <= WIDEST_SHIFT:
        shift += LEVEL_STEP
        busy = np.add.reduceat(busy, np.arange(0, len(busy), 1 << LEVEL_STEP), axis=0)
        levels.append(Level(shift, busy.astype(np.uint32)))
    return tuple(levels)
