"""Nanoseconds from decimal text, against decimal arithmetic."""

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moescope.trace.decimals import as_int, as_int64, microseconds_to_ns
from moescope.trace.exact import ns_of_floats, ns_of_integers

NANOSECONDS = st.integers(-(2**43) * 1000 + 1000, 2**43 * 1000 - 1000)


@given(st.lists(NANOSECONDS, min_size=1))
def test_a_float_below_2_to_the_43_gives_the_nanosecond_of_its_text(ns: list[int]) -> None:
    texts = [f"{Decimal(n) / 1000:f}" for n in ns]
    exact = ns_of_floats(np.array([float(text) for text in texts]))
    assert exact is not None
    assert exact.tolist() == ns


def test_larger_floats_are_not_trusted() -> None:
    assert ns_of_floats(np.array([1.0, 1.7e15])) is None
    assert ns_of_floats(np.array([1.0, np.nan])) is None
    assert ns_of_integers(np.array([2**63 // 1000 + 1])) is None


@given(st.integers(-4 * 10**18, 4 * 10**18))
def test_text_is_exact_over_all_times(ns: int) -> None:
    assert microseconds_to_ns(f"{Decimal(ns) / 1000:f}") == ns


@pytest.mark.parametrize(
    "value", ["", "soon", "NaN", "-Infinity", "1e400", None, True, "9" * 30, [], 2**63, "4000000000000000.001"]
)
def test_what_is_no_time(value: object) -> None:
    assert microseconds_to_ns(value) is None


@pytest.mark.parametrize(
    ("value", "number"),
    [("stream 7", 7), ("12", 12), ("12.0", 12), (12.0, 12), ("12.5", None), ("PyTorch", None), (True, None)],
)
def test_integers_in_odd_clothes(value: object, number: int | None) -> None:
    assert as_int(value) == number


def test_unsigned_numbers_keep_their_bits() -> None:
    assert as_int64(2**64 - 1) == -1
    assert as_int64(2**64) is None
