"""Charts: lengths, colours and ticks are what the values say."""

from __future__ import annotations

import re

import pytest
from analysis_fixture import NS_PER_TOKEN, example, skewed_tokens
from hypothesis import given
from hypothesis import strategies as st

from moescope.report import charts, heat
from moescope.report.svg import bare_zeros, nice_step, shorten, tag, ticks
from moescope.views.panels import Matrix, spread
from moescope.views.panels.load import balance_limit
from moescope.views.panels.step import rank_parts, used_groups
from moescope.views.text import duration


def test_bar_lengths_are_in_proportion_and_end_to_end() -> None:
    segments = (charts.Segment(30.0, "a", ""), charts.Segment(10.0, "b", ""))
    svg = charts.stacked_bars([charts.Bar("r", segments, "40")], "x", str)
    found = re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', svg)
    (x0, w0), (x1, w1) = [(float(x), float(w)) for x, w in found]
    assert w0 / w1 == pytest.approx(3)
    assert x1 == pytest.approx(x0 + w0)
    assert x1 + w1 == pytest.approx(charts.WIDTH - charts.RIGHT)


def test_parts_of_all_ranks_are_drawn_with_their_numbers() -> None:
    rows = rank_parts(example(hostile=False))
    svg = charts.parts_chart(rows, used_groups(rows))
    tokens = sum(sum(layer[8:12]) for layer in skewed_tokens(4, 3))
    assert f"rank 2 · Expert GEMM: {duration(tokens * NS_PER_TOKEN)}, " in svg
    assert svg.count("All-to-all wait") == 3  # rank 2 itself never waits


def test_attribute_and_text_are_escaped() -> None:
    assert tag("text", "<b>&", class_='"><x') == '<text class="&#34;&gt;&lt;x">&lt;b&gt;&amp;</text>'


@given(st.floats(min_value=1e-3, max_value=1e15))
def test_ticks_are_round_and_inside(top: float) -> None:
    values = ticks(top)
    assert values[0] == 0
    assert values[-1] <= top * (1 + 1e-9)
    assert 3 <= len(values) <= 7
    mantissa = f"{values[1]:.6e}".partition("e")[0]
    assert mantissa in ("1.000000", "2.000000", "5.000000")


@pytest.mark.parametrize(("least", "step"), [(0.3, 1), (1.5, 2), (2.1, 5), (7, 10), (60, 100)])
def test_nice_step(least: float, step: int) -> None:
    assert nice_step(least) == step


def test_small_texts() -> None:
    assert bare_zeros("10.0 ms") == "10 ms"
    assert bare_zeros("0.050") == "0.050"
    assert shorten("a-very-long-host-name", 9) == "a-ve…name"


@given(st.integers(1, 3), st.floats(min_value=0, max_value=100))
def test_balance_colour_is_centred_and_monotone(limit: int, value: float) -> None:
    middle = (heat.LEVELS - 1) // 2
    level = heat.balance_level(value, limit)
    assert 0 <= level < heat.LEVELS
    assert heat.balance_level(1.0, limit) == middle
    assert (level >= middle) if value >= 1 else (level <= middle)
    assert heat.balance_level(value * 1.5, limit) >= level


def test_balanced_load_stays_pale() -> None:
    matrix = Matrix("layer", "rank", (0,), (0, 1), ((0.98, 1.02),), "factor")
    limit = balance_limit(matrix)
    assert limit == 1
    assert {heat.balance_level(v, limit) for v in matrix.values[0]} == {16}


def test_heat_map_covers_every_cell_once() -> None:
    levels = [[1, 1, None, 2], [2, 2, 2, 2]]
    paths = heat.cells(levels, 0, 10, 5, gap=0)
    area = sum(float(w) * 5 for path in paths for w in re.findall(r"h([\d.]+)v5", path))
    assert area == 7 * 50


@given(st.integers(1, 300), st.sets(st.integers(0, 299), max_size=20), st.integers(1, 40))
def test_spread_keeps_the_named_and_the_limit(count: int, named: set[int], most: int) -> None:
    named = {i for i in named if i < count}
    kept = spread(count, sorted(named), most)
    assert kept == sorted(set(kept))
    assert len(kept) == min(count, most)
    assert all(0 <= i < count for i in kept)
    if len(named) <= most:
        assert named <= set(kept)
