"""Charts of matrix products and idle time in the report: places and lengths are what the values say."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from analysis_fixture import HOSTILE, bare, example, gemm_example

from moescope.report import products
from moescope.report.page import render
from moescope.report.sections import sections
from moescope.views.panels.gemm import bucket_rows
from moescope.views.panels.step import rank_parts


def test_points_stand_at_their_rows_and_rates() -> None:
    svg, legend = products.rates_chart(gemm_example())
    assert [label for _, label in legend] == ["4 × 1,024 → 4,096, bfloat16", "1,024 → 512, float32"]
    points = {
        title: (float(x), float(y))
        for x, y, title in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"[^>]*><title>([^<]*)</title>', svg)
    }
    (x0, y0), (x1, y1), (x2, _) = sorted(place for title, place in points.items() if title.startswith("4 ×"))
    assert (x2 - x1) / (x1 - x0) == pytest.approx(math.log10(4), rel=0.01)
    rate = {rows: 33_554_432 * rows / (20_000 + 10 * rows) / 1e3 for rows in (100, 1_000)}
    bottom = products.BOTTOM
    assert (bottom - y1) / (bottom - y0) == pytest.approx(rate[1_000] / rate[100], rel=0.01)
    assert "reference 2,000 TFLOP/s bfloat16: measured baseline" in svg


def test_a_single_row_count_and_hostile_names_are_drawn_too() -> None:
    gemm = gemm_example()
    one = replace(gemm, curves=gemm.curves[:1])
    assert products.rates_chart(one)[0].count("<circle") == 1
    named = replace(gemm, references=(replace(gemm.references[0], source=HOSTILE),))
    assert HOSTILE not in products.rates_chart(named)[0]


def test_loss_bars_show_gains_in_their_total_alone() -> None:
    svg, legend = products.losses_chart(bucket_rows(gemm_example()), "x")
    assert svg.count("370 µs") == 2
    assert [label for _, label in legend] == ["Memory roofline", "Tile padding", "Wave quantisation", "Launch gaps"]
    widths = [float(w) for w in re.findall(r'<rect x="[\d.]+" y="4" width="([\d.]+)"', svg)]
    assert [w / sum(widths) for w in widths] == pytest.approx([40 / 420, 60 / 420, 300 / 420, 20 / 420], rel=0.01)


def test_idle_bars_are_in_proportion() -> None:
    svg, legend = products.host_chart(rank_parts(example(hostile=False)))
    assert [label for _, label in legend] == ["Host launch", "Synchronising", "Dependency", "Launch gap"]
    widths = [float(w) for w in re.findall(r'<rect x="[\d.]+" y="4" width="([\d.]+)"', svg)]
    assert widths[0] / widths[1] == pytest.approx(2_300 / 1_450, rel=0.01)


def test_sections_are_drawn_or_say_what_is_missing() -> None:
    found = {section.panel.key: section for section in sections(example())}
    for key in ("rates", "losses", "layerlosses", "host"):
        assert len(found[key].pictures) == 1
    found = {section.panel.key: section for section in sections(bare())}
    assert found["rates"].panel.empty is not None
    assert "The traces record no shapes of matrix products" in render(bare()).text
