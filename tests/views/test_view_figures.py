"""Plotly figures: the values of the panels, recorded names as text, both themes."""

from __future__ import annotations

import json

import pytest
from analysis_fixture import HOSTILE, bare, example

from moescope.views import figures
from moescope.views.figures import heat as figures_heat
from moescope.views.figures import lines as figures_lines
from moescope.views.figures.catalog import FIGURES
from moescope.views.panels.step import rank_parts

ALL = list(FIGURES.values())


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_hostile_names_reach_plotly_escaped(make, theme: str) -> None:
    text = make(example(), theme).to_json()
    assert HOSTILE not in json.dumps(json.loads(text), ensure_ascii=False)
    assert len(text) < 100_000


BARE_HAS = (figures.parts_figure, FIGURES["host"])


@pytest.mark.parametrize("make", [make for make in ALL if make not in BARE_HAS])
def test_empty_panels_have_no_figure(make) -> None:
    with pytest.raises(ValueError, match=r"^no|^nothing"):
        make(bare())


def test_bars_of_a_rank_sum_to_its_step_and_waits_are_hatched() -> None:
    analysis = example(hostile=False)
    figure = figures.parts_figure(analysis)
    for index, row in enumerate(rank_parts(analysis)):
        assert sum(trace.x[index] for trace in figure.data) == pytest.approx(row.window_ns / 1e6)
    hatched = {trace.name for trace in figure.data if trace.marker.pattern.shape}
    assert hatched == {"All-to-all wait", "Reduction wait"}


def test_heat_map_is_centred_on_the_mean() -> None:
    figure = figures_heat.ranks_figure(example(hostile=False))
    heat = figure.data[0]
    assert heat.zmin == -heat.zmax
    assert heat.z[2][2] == pytest.approx(0.994, abs=0.01)  # log2 of 1.99
    assert figure.data[2].x[0] == 0.04  # the random floor


def test_few_of_many_ranks_are_drawn_with_the_named() -> None:
    figure = figures.parts_figure(example(200, 1, 2, hostile=False))
    labels = list(figure.data[0].y)
    assert len(labels) == figures.MOST_BARS
    assert "rank 2" in labels


def test_profiled_steps_are_shaded() -> None:
    assert figures_lines.profiled_spans(example().telemetry) == [(10, 11)]
