"""Spread of loads, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from moescope.attribution.load import gini, variation


def test_gini_is_zero_when_even_and_known_when_one_takes_all() -> None:
    assert gini(np.array([5.0, 5.0, 5.0, 5.0])) == 0
    assert gini(np.array([0.0, 0.0, 0.0, 8.0])) == pytest.approx(3 / 4)
    assert gini(np.array([3.0, 1.0])) == pytest.approx(0.25)
    assert gini(np.zeros(3)) == 0


def test_variation_is_std_over_mean() -> None:
    assert variation(np.array([2.0, 4.0])) == pytest.approx(1 / 3)
    assert variation(np.zeros(2)) == 0
