"""Numbers as text, golden."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moescope.views import text


@pytest.mark.parametrize(
    ("ns", "shown"),
    [
        (None, "–"),
        (0, "0"),
        (999, "999 ns"),
        (1_000, "1.00 µs"),
        (12_345, "12.3 µs"),
        (999_600, "1.00 ms"),
        (45_600_000, "45.6 ms"),
        (1_239_000_000, "1.24 s"),
        (1_239_000_000_000, "1,239 s"),
        (-1_500_000, "-1.50 ms"),
    ],
)
def test_duration(ns: int | None, shown: str) -> None:
    assert text.duration(ns) == shown


@pytest.mark.parametrize(
    ("num_bytes", "shown"),
    [(None, "–"), (0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (50_100_000_000, "46.7 GiB")],
)
def test_size(num_bytes: int | None, shown: str) -> None:
    assert text.size(num_bytes) == shown


@pytest.mark.parametrize(
    ("share", "shown"),
    [(None, "–"), (0, "0 %"), (0.00001, "<0.01 %"), (0.0041, "0.41 %"), (0.183, "18.3 %"), (1.0, "100.0 %")],
)
def test_percent(share: float | None, shown: str) -> None:
    assert text.percent(share) == shown


def test_counts_and_lists() -> None:
    assert text.count(412345) == "412,345"
    assert text.count(3.0) == "3"
    assert text.count(3.25) == "3.2"
    assert text.milliseconds(45_634_000) == "45.63"
    assert text.milliseconds(12_000) == "0.012"
    assert text.plural(1, "rank") == "1 rank"
    assert text.plural(1200, "rank") == "1,200 ranks"
    assert text.ranges([3, 0, 1, 2, 7]) == "0–3, 7"
    assert text.ranges([]) == "–"


@given(st.floats(min_value=1e-6, max_value=1e12), st.integers(1, 6))
def test_significant_is_close(value: float, digits: int) -> None:
    shown = float(text.significant(value, digits).replace(",", ""))
    assert shown == pytest.approx(value, rel=0.51 * 10 ** (1 - digits))
