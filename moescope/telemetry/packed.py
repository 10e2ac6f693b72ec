"""Reads back what ``moescope_hooks.packing`` wrote."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


def unpack(content: bytes, rows: int, width: int, chains: Sequence[Hashable] | None = None) -> IntArray:
    """The int64 [rows, width] of ``content``; ``chains`` as they were packed.

    Raises ValueError where sizes disagree.
    """
    if rows * width == 0:
        if content:
            raise ValueError(f"{len(content)} bytes for no values")
        return np.zeros((rows, width), dtype=np.int64)
    planes, rest = divmod(len(content), rows * width)
    if rest or not 1 <= planes <= 8:
        raise ValueError(f"{len(content)} bytes for {rows} times {width} values")
    bytes_of = np.zeros((rows * width, 8), dtype=np.uint8)
    bytes_of[:, :planes] = np.frombuffer(content, dtype=np.uint8).reshape(planes, rows * width).T
    unsigned = bytes_of.view("<u8").reshape(rows, width)
    delta = (unsigned >> np.uint64(1)).astype(np.int64) ^ -(unsigned & np.uint64(1)).astype(np.int64)
    return _summed(delta, chains)


def _summed(delta: IntArray, chains: Sequence[Hashable] | None) -> IntArray:
    if chains is None:
        return delta
    members: dict[Hashable, list[int]] = {}
    for row, chain in enumerate(chains):
        members.setdefault(chain, []).append(row)
    values = np.empty_like(delta)
    for rows in members.values():
        values[rows] = np.cumsum(delta[rows], axis=0)
    return values
