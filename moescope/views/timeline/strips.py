"""One rank in one line: what it was busy with at every moment, and exactly how long in any stretch of time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moescope.attribution.sweep import partition

IntArray = npt.NDArray[np.int64]

CLASSES = ("compute", "transfer", "wait", "copy")
"""In priority order: compute hides communication, communication hides copies; the rest is idle."""
COMPUTE, TRANSFER, WAIT, COPY = range(4)


@dataclass(frozen=True, slots=True)
class Strip:
    """Consecutive pieces of one rank's time with what it did in each; ns since the timeline's start."""

    edges_ns: IntArray
    """[m + 1]."""
    class_of: IntArray
    """[m]: index into CLASSES, -1 while idle."""
    busy_ns: IntArray
    """[len(CLASSES), m + 1]: time of each class before each edge."""

    def busy_before(self, at_ns: IntArray) -> IntArray:
        """Time of each class before each moment; [len(CLASSES), n], exact."""
        piece = np.searchsorted(self.edges_ns, at_ns, side="right") - 1
        inside = np.clip(piece, 0, len(self.class_of) - 1)
        clipped = np.clip(at_ns, self.edges_ns[0], self.edges_ns[-1])
        extra = clipped - self.edges_ns[inside]
        busy = self.busy_ns[:, inside]
        for index in range(len(CLASSES)):
            busy[index] += np.where(self.class_of[inside] == index, extra, 0)
        return busy

    def busy(self, low_ns: int, high_ns: int) -> tuple[int, ...]:
        """Time of each class in ``[low_ns, high_ns)``."""
        before = self.busy_before(np.array([low_ns, high_ns], dtype=np.int64))
        return tuple(int(value) for value in before[:, 1] - before[:, 0])

    def shares(self, first_bucket: int, num_buckets: int, shift: int) -> npt.NDArray[np.uint8]:
        """Share of each bucket that each class takes, 0 to 255; at least 1 where there is anything; [classes, n]."""
        at = (np.arange(num_buckets + 1, dtype=np.int64) + first_bucket) << shift
        busy = np.diff(self.busy_before(at), axis=1)
        shares = np.rint(busy * (255.0 / (1 << shift)))
        return np.where(busy > 0, np.maximum(shares, 1), 0).astype(np.uint8)


def make_strip(start_ns: IntArray, end_ns: IntArray, class_of: IntArray, waits: tuple[IntArray, IntArray]) -> Strip:
    """Partition a rank's time.

    ``start_ns, end_ns, class_of``: [n] busy intervals, COMPUTE, TRANSFER or COPY; ``waits``: [k] starts and ends of
    arrival waits, which turn transfer into waiting where they overlap it.
    """
    if len(start_ns) == 0:
        return Strip(np.array([0, 0]), np.array([-1]), np.zeros((len(CLASSES), 2), dtype=np.int64))
    low, high = int(start_ns.min()), int(end_ns.max())
    pieces = partition(start_ns, end_ns, class_of, low, max(high, low + 1))
    edges, kind = _with_waits(np.append(pieces.start_ns, pieces.end_ns[-1]), pieces.label, *waits)
    length = np.diff(edges)
    busy = np.zeros((len(CLASSES), len(edges)), dtype=np.int64)
    for index in range(len(CLASSES)):
        busy[index, 1:] = np.cumsum(np.where(kind == index, length, 0))
    return Strip(edges, kind, busy)


def _with_waits(edges: IntArray, kind: IntArray, start: IntArray, end: IntArray) -> tuple[IntArray, IntArray]:
    """Cut the pieces at the waits' ends and call transfer inside a wait waiting."""
    kept = end > start
    start, end = start[kept], end[kept]
    if len(start) == 0:
        return edges, kind
    cuts = np.clip(np.concatenate((start, end)), edges[0], edges[-1])
    fine = np.unique(np.concatenate((edges, cuts)))
    piece = np.searchsorted(edges, fine[:-1], side="right") - 1
    waiting = np.zeros(len(fine), dtype=np.int64)
    np.add.at(waiting, np.searchsorted(fine, np.clip(start, fine[0], fine[-1])), 1)
    np.add.at(waiting, np.searchsorted(fine, np.clip(end, fine[0], fine[-1])), -1)
    fine_kind = kind[piece]
    return fine, np.where((np.cumsum(waiting)[:-1] > 0) & (fine_kind == TRANSFER), WAIT, fine_kind)
