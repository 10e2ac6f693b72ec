"""Memory per received token: the slope, its uncertainty, and when it is not known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moescope.attribution.memory_tokens import POINTS, fit_tokens, received_tokens, token_points


def points(rows: Sequence[tuple[int, int, float, int]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=POINTS, orient="row")


def test_tokens_are_those_of_the_fullest_microbatch_summed_over_layers() -> None:
    counts = pl.DataFrame(
        [(0, 0, 0, 0, 10.0), (0, 0, 1, 0, 20.0), (0, 1, 0, 0, 5.0), (0, 1, 1, 0, 90.0), (0, 0, 0, 1, 7.0)],
        schema=["step", "microbatch", "layer", "rank", "tokens"],
        orient="row",
    )
    assert received_tokens(counts).rows() == [(0, 0, 95.0), (1, 0, 7.0)]
    assert token_points(counts, {(0, 0): 1000, (9, 9): 1}).rows() == [(0, 0, 95.0, 1000)]


def test_an_exact_line_gives_its_slope_without_error() -> None:
    """Two ranks with different parameters (1 MB and 5 MB) and 2,000 bytes per token."""
    rows = [(r, s, float(100 + 10 * s), base + 2000 * (100 + 10 * s)) for r, base in ((0, 10**6), (1, 5 * 10**6)) for s in range(4)]  # fmt: skip  # noqa: E501
    fit = fit_tokens(points(rows))
    assert fit is not None
    assert (fit.bytes_per_token, fit.within_ranks, fit.num_points) == (pytest.approx(2000), True, 8)
    assert fit.error == pytest.approx(0, abs=1e-6)


def test_with_one_step_each_the_ranks_share_a_line() -> None:
    fit = fit_tokens(points([(r, 0, float(50 * (r + 1)), 7000 + 300 * 50 * (r + 1)) for r in range(6)]))
    assert fit is not None
    assert (fit.bytes_per_token, fit.within_ranks, fit.num_points) == (pytest.approx(300), False, 6)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [(0, s, 100.0 + s, 10**6) for s in range(3)],
        [(0, s, 100.0, 10**6 + s) for s in range(9)],
        [(0, s, 100.0 + 10 * s, 10**6) for s in range(9)],
        [(0, s, 100.0 + 10 * s, 10**6 - 5000 * s) for s in range(9)],
    ],
    ids=["none", "few", "even tokens", "flat", "falling"],
)
def test_where_tokens_do_not_tell_there_is_no_slope(rows: list[tuple[int, int, float, int]]) -> None:
    assert fit_tokens(points(rows)) is None


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(100, 5000), st.integers(1, 4))
def test_the_true_slope_lies_within_four_errors(seed: int, slope: float, ranks: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [
        (rank, step, float(tokens), int(10**7 * (rank + 1) + slope * tokens + rng.normal(0, 20_000)))
        for rank in range(ranks)
        for step, tokens in enumerate(rng.integers(500, 4000, 24))
    ]
    fit = fit_tokens(points(rows))
    assert fit is None or abs(fit.bytes_per_token - slope) <= 5 * fit.error
