"""Nanoseconds from decimal text, against decimal arithmetic."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moescope.trace.decimals import as_int, as_int64, microseconds_to_ns


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
