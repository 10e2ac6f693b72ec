"""Offsets of clocks that drift, from bounds at known times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moescope.align.feasible import Bounds, shadow

STEEPEST = 200e-6


def bounds(*points: tuple[float, float]) -> Bounds:
    table = np.array(points, dtype=np.float64).reshape(-1, 2)
    return Bounds(table[:, 0], table[:, 1])


def test_ranges_by_hand() -> None:
    """Lines through the gates between 1 and 3 at time -1 and between -1 and 1 at time 1."""
    found = shadow(bounds((-1, 3), (1, 1)), bounds((-1, 1), (1, -1)), steepest=5)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((0, 2))
    assert (found.slope_low, found.slope_high) == pytest.approx((-2, 0))
    assert found.slope == pytest.approx(-1)


def test_a_single_gate_leaves_the_offset_what_the_drift_can_do() -> None:
    found = shadow(bounds((1000, 30)), bounds((1000, 20)), steepest=0.01)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((20 - 10, 30 + 10))
    assert (found.slope_low, found.slope_high) == (-0.01, 0.01)


def test_what_only_one_side_bounds_is_open_to_the_other() -> None:
    found = shadow(bounds((0, 7)), bounds(), STEEPEST)
    assert found is not None
    assert (found.low, found.high) == (-np.inf, pytest.approx(7))


def test_gates_that_no_clock_passes() -> None:
    assert shadow(bounds((0, 0), (10, 50)), bounds((0, -1), (10, 49)), STEEPEST) is None


moments = st.lists(st.tuples(st.floats(-1e9, 1e9), st.floats(0, 1e7)), max_size=8)


@given(st.floats(-5e7, 5e7), st.floats(-STEEPEST, STEEPEST), moments, moments)
def test_the_true_line_is_never_excluded(
    offset: float, drift: float, over: list[tuple[float, float]], under: list[tuple[float, float]]
) -> None:
    above = bounds(*((time, offset + drift * time + room) for time, room in over))
    below = bounds(*((time, offset + drift * time - room) for time, room in under))
    found = shadow(above, below, STEEPEST)
    if found is None:  # rounding, where a gate has no width
        assert min(room for _, room in over) < 1e-6
        return
    assert found.low - 1e-3 <= offset <= found.high + 1e-3
    assert found.slope_low - 1e-12 <= drift <= found.slope_high + 1e-12
