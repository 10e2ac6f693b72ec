"""Tables of integers as few bytes, for the Parquet parts: what a step notes differs little from row to row.

Each row is replaced by its difference from the row before it in the same chain (a layer's counts from those of the
microbatch before), the sign goes into the lowest bit, and the bytes are laid out plane by plane, lowest first. zstd,
which Parquet applies, then finds what is left nearly free of redundancy. ``moescope.telemetry.packed`` reads it back.
"""

from __future__ import annotations

import ctypes
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

GRAIN = 32768
"""Elements in one go: torch runs smaller operations on the calling thread alone, and the others belong to training."""


def pack(values: Tensor, chains: Sequence[Hashable] | None = None) -> bytes:
    """The bytes of ``values``, int64 [rows, width]; ``chains``: one key per row, None for rows that stand alone.

    Within int64, differences wrap around and come back exactly; only the count of planes grows.
    """
    previous = _previous(chains, len(values))
    rows = max(1, GRAIN // max(1, values.shape[1]))
    pieces = [_unsigned(values, previous, start, start + rows) for start in range(0, len(values), rows)]
    num_planes = max((_num_planes(piece) for piece in pieces), default=0)
    return b"".join(
        _raw((piece >> shift & 255).to(torch.uint8)) for shift in range(0, 8 * num_planes, 8) for piece in pieces
    )


def _unsigned(values: Tensor, previous: Tensor, start: int, end: int) -> Tensor:
    """Differences of some rows, with their signs in the lowest bit."""
    delta, before = values[start:end].clone(), previous[start:end]
    follows = before >= 0
    delta[follows] -= values[before[follows]]
    return (delta << 1) ^ (delta >> 63)


def _previous(chains: Sequence[Hashable] | None, rows: int) -> Tensor:
    """For each row, the last row before it in the same chain, or -1."""
    last: dict[Hashable, int] = {}
    places = [-1] * rows
    for row, chain in enumerate(chains or ()):
        places[row] = last.get(chain, -1)
        last[chain] = row
    return torch.tensor(places, dtype=torch.int64)


def _num_planes(unsigned: Tensor) -> int:
    """Bytes that the largest value needs; all eight where the highest bit is set, which int64 shows as a sign."""
    if unsigned.numel() == 0:
        return 0
    if int(unsigned.min()) < 0:
        return 8
    return max(1, (int(unsigned.max()).bit_length() + 7) // 8)


def _raw(plane: Tensor) -> bytes:
    """Its bytes, without going through Python objects or numpy."""
    contiguous = plane.contiguous()
    return ctypes.string_at(contiguous.data_ptr(), contiguous.numel())
