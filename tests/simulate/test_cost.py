"""Tiles and waves by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moescope.simulate import cost
from moescope.simulate.config import Device

# Four multiprocessors, 1,024 multiply-adds per ns each, memory that never limits.
DEVICE = dataclasses.replace(
    Device(),
    num_sms=4,
    peak_flops_per_ns=8_192.0,
    gemm_efficiency=1.0,
    memory_bytes_per_ns=1e12,
    kernel_overhead_ns=7.0,
)
TILE_NS = 128 * 128 * 64 / 1024
"""One tile with a sum over 64 elements."""


@pytest.mark.parametrize(
    ("m", "n", "waves"), [(128, 128, 1), (129, 128, 1), (128, 512, 1), (129, 512, 2), (1024, 128, 2), (1025, 128, 3)]
)
def test_a_product_takes_whole_waves_of_whole_tiles(m, n, waves):
    assert cost.gemm_ns(m, n, 64, DEVICE) == waves * TILE_NS + 7


def test_small_experts_waste_their_tiles():
    one = cost.grouped_gemm_ns(np.array([1024]), 128, 64, DEVICE)
    many = cost.grouped_gemm_ns(np.full(16, 64), 128, 64, DEVICE)
    assert one == 2 * TILE_NS + 7
    assert many == 4 * TILE_NS + 7


def test_an_expert_without_rows_costs_nothing():
    rows = np.array([[128, 0, 0, 256], [128, 256, 0, 0]])
    assert cost.grouped_gemm_ns(rows, 128, 64, DEVICE).tolist() == [TILE_NS + 7] * 2


def test_weight_gradients_pay_for_each_step_of_the_sum():
    device = DEVICE
    assert cost.grouped_weight_gemm_ns(np.array([64, 1]), 128, 512, device) == 2 * TILE_NS + 7


def test_memory_limits_what_computes_little():
    slow = dataclasses.replace(DEVICE, memory_bytes_per_ns=1.0)
    assert cost.gemm_ns(128, 128, 64, slow) == 2 * (128 * 64 + 64 * 128 + 128 * 128) + 7


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=8), st.integers(0, 7))
def test_more_rows_never_take_less(rows, index):
    more = list(rows)
    more[index % len(rows)] += 100
    assert cost.grouped_gemm_ns(np.array(more), 256, 64, Device()) >= cost.grouped_gemm_ns(
        np.array(rows), 256, 64, Device()
    )
