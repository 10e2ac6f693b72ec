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

    The tiles are of the weight, so their number is fixed; rows are padded to a multiple of 64 per step of the sum.
    """
    rows_array = np.asarray(rows, dtype=np.int64)
    depth = (-(-rows_array // 64)).sum(-1) * 64
    tiles_each = -(-n // TILE_N) * -(-k // TILE_M)
    per_unit = 2.0 * TILE_M * TILE_N / (device.peak_flops_per_ns * device.gemm_efficiency / device.num_sms)
    waves_share = np.maximum(tiles_each * rows_array.shape[-1] / device.num_sms, 1.0)
    busy = depth / rows_array.shape[-1] * per_unit * waves_share
    moved = (rows_array.sum(-1) * (n + k) + rows_array.shape[-1] * n * k) * ITEM_BYTES
    return np.maximum(busy, moved / device.memory_bytes_per_ns) + device.kernel_overhead_ns


def gemm_ns(m: int, n: int, k: int, device: Device) -> float:
    """Time of one ``[m, k] x [k, n]``."""
    tiles = -(-m // TILE_M) * -(-n // TILE_N)
    moved = (m * k + k * n + m * n) * ITEM_BYTES
    return float(_gemm_ns(np.asarray(tiles), k, np.asarray(moved), device))


def _gemm_ns(tiles: NDArray[np.int64], k: int, moved: NDArray[np.int64], device: Device) -> FloatArray:
    tile_ns = 2.0 * TILE_M * TILE_N * k / (device.peak_flops_per_ns * device.gemm_efficiency / device.num_sms)
    waves = -(-tiles // device.num_sms)
    return np.maximum(waves * tile_ns, moved / device.memory_bytes_per_ns) + device.kernel_overhead_ns


def attention_ns(tokens: int, sequence: int, hidden: int, device: Device) -> float:
    """Causal flash attention, forward: half of 4 * tokens * sequence * hidden operations at 60 % of the peak."""
    operations = 2.0 * tokens * min(tokens, sequence) * hidden
    return operations / (0.6 * device.peak_flops_per_ns) + device.kernel_overhead_ns


def memory_bound_ns(moved_bytes: ArrayLike, device: Device) -> FloatArray:
    """Time of a kernel that streams so many bytes."""
    return np.asarray(moved_bytes, dtype=np.float64) / device.memory_bytes_per_ns + device.kernel_overhead_ns
