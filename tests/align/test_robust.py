"""Lines through points some of which lie."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moescope.align.robust import huber_line, lad_line, mad

X = np.linspace(0, 100, 51)


def test_median_absolute_deviation_by_hand() -> None:
    assert mad(np.array([1.0, 2.0, 4.0, 100.0, 3.0])) == 1.0  # median 3, deviations 2 1 1 97 0
    assert mad(np.zeros(0)) == 0.0


@given(st.floats(-1e6, 1e6), st.floats(-1e3, 1e3))
def test_points_on_a_line_give_the_line(intercept: float, slope: float) -> None:
    y = intercept + slope * X
    scale = abs(intercept) + abs(slope) * 100 + 1
    for line in (huber_line(X, y), lad_line(X, y)):
        assert line.intercept == pytest.approx(intercept, abs=1e-6 * scale)
        assert line.slope == pytest.approx(slope, abs=1e-7 * scale)


def test_a_third_of_wild_points_does_no_harm_to_least_absolute_deviations() -> None:
    y = 5 + 2 * X
    y[::3] += 1000.0
    line = lad_line(X, y)
    assert (line.intercept, line.slope) == pytest.approx((5, 2), abs=1e-2)


def test_one_wild_point_in_ten_moves_huber_by_less_than_the_noise() -> None:
    draw = np.random.default_rng(0)
    y = 5 + 2 * X + draw.normal(0, 1, len(X))
    y[::10] += 500.0
    line = huber_line(X, y)
    assert line.slope == pytest.approx(2, abs=0.03)


def test_a_high_quantile_lies_above_nine_tenths_of_the_points() -> None:
    draw = np.random.default_rng(1)
    x = draw.uniform(0, 100, 1000)
    y = 3 * x - draw.exponential(50, 1000)
    line = lad_line(x, y, quantile=0.9)
    below = y <= line.intercept + line.slope * x
    assert below.mean() == pytest.approx(0.9, abs=0.01)


def test_equal_x_do_not_crash() -> None:
    assert huber_line(np.ones(4), np.array([1.0, 2.0, 3.0, 4.0])).slope == pytest.approx(0, abs=1e-9)
