"""How long kernels take: tiles and waves for matrix products, memory traffic for the rest.

A matrix product is cut into tiles; each streaming multiprocessor computes one tile at a time, so the time is a
whole number of waves. Small experts lose to padding (a tile is computed whole) and to the last, partly filled wave.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from moescope.simulate.config import Device

FloatArray = NDArray[np.float64]

TILE_M = 128
TILE_N = 128
STEP_K = 64
ITEM_BYTES = 2
"""bfloat16."""


def grouped_gemm_ns(rows: ArrayLike, n: int, k: int, device: Device) -> FloatArray:
    """Time of ``[rows_e, k] x [k, n]`` over all experts in one launch; ``rows`` is [..., experts]."""
    rows_array = np.asarray(rows, dtype=np.int64)
    tiles = (-(-rows_array // TILE_M)).sum(-1) * -(-n // TILE_N)
    moved = (rows_array.sum(-1) * (n + k) + (rows_array > 0).sum(-1) * n * k) * ITEM_BYTES
    return _gemm_ns(tiles, k, moved, device)


def grouped_weight_gemm_ns(rows: ArrayLike, n: int, k: int, device: Device) -> FloatArray:
    """Time of the weight gradients ``[k, rows_e] x [rows_e, n]`` over all experts; ``rows`` is [..., experts].

    The tiles are the weight's; each sums over the expert's rows, padded to whole steps of the sum.
    """
    rows_array = np.asarray(rows, dtype=np.int64)
    depth = (-(-rows_array // STEP_K) * STEP_K).sum(-1)
    tiles = -(-n // TILE_N) * -(-k // TILE_M)
    moved = (rows_array.sum(-1) * (n + k) + rows_array.shape[-1] * n * k) * ITEM_BYTES
    busy = tiles * depth * _tile_ns_per_k(device) / device.num_sms
    return _at_least(busy, moved, device)


def gemm_ns(m: int, n: int, k: int, device: Device) -> float:
    """Time of one ``[m, k] x [k, n]``."""
    tiles = -(-m // TILE_M) * -(-n // TILE_N)
    moved = (m * k + k * n + m * n) * ITEM_BYTES
    return float(_gemm_ns(np.asarray(tiles), k, np.asarray(moved), device))


def _gemm_ns(tiles: NDArray[np.int64], k: int, moved: NDArray[np.int64], device: Device) -> FloatArray:
    waves = -(-tiles // device.num_sms)
    return _at_least(waves * k * _tile_ns_per_k(device), moved, device)


def _tile_ns_per_k(device: Device) -> float:
    """Time that one multiprocessor takes for one tile, per element of the sum."""
    return 2.0 * TILE_M * TILE_N * device.num_sms / (device.peak_flops_per_ns * device.gemm_efficiency)


def _at_least(busy_ns: ArrayLike, moved_bytes: ArrayLike, device: Device) -> FloatArray:
    """The longer of computing and moving, and the kernel's overhead."""
    moving = np.asarray(moved_bytes, dtype=np.float64) / device.memory_bytes_per_ns
    return np.asarray(np.maximum(busy_ns, moving) + device.kernel_overhead_ns, dtype=np.float64)


def attention_ns(tokens: int, sequence: int, hidden: int, device: Device) -> float:
    """Causal flash attention, forward: half of 4 * tokens * sequence * hidden operations at 60 % of the peak."""
    operations = 2.0 * tokens * min(tokens, sequence) * hidden
    return operations / (0.6 * device.peak_flops_per_ns) + device.kernel_overhead_ns


def memory_bound_ns(moved_bytes: ArrayLike, device: Device) -> FloatArray:
    """Time of a kernel that streams so many bytes."""
    return _at_least(0.0, moved_bytes, device)
