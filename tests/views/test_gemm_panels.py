"""Panels of matrix products and of idle time: hand-computed rates, sums that stay sums, reasons where nothing is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from analysis_fixture import bare, example, gemm_example

from moescope.views.figures import gemm as figures_gemm
from moescope.views.model.gemm import GemmCost
from moescope.views.palette import LIGHT
from moescope.views.panels import gemm as panels_gemm
from moescope.views.panels import host as panels_host

NOTHING = GemmCost(0.0, 0, 0.0, 0.0, 0, dict.fromkeys(panels_gemm.LOSSES, 0))


def test_rates_follow_from_rows_and_times() -> None:
    grouped, still = panels_gemm.rate_curves(gemm_example())
    assert grouped.label == "4 × 1,024 → 4,096, bfloat16"
    assert grouped.points[1] == (1_000.0, pytest.approx(33_554_432 * 1_000 / 30_000 / 1e3), 6)
    assert grouped.half_rows == 2_000.0
    assert grouped.fit[0] == (100.0, pytest.approx(33_554_432 * 100 / 21_000 / 1e3))
    assert grouped.fit[-1][0] == pytest.approx(4_000.0)
    assert still.fit == ()
    assert still.half_rows is None


def test_products_of_no_rows_have_no_rate() -> None:
    gemm = gemm_example()
    curve = replace(gemm.curves[0], points=((0.0, 5_000.0, 3), *gemm.curves[0].points))
    (drawn, _) = panels_gemm.rate_curves(replace(gemm, curves=(curve, *gemm.curves[1:])))
    assert drawn == panels_gemm.rate_curves(gemm)[0]


def test_reading_of_rates_names_the_reference_and_its_source() -> None:
    panel = panels_gemm.rates_panel(example())
    assert panel.reading == (
        "4 × 1,024 → 4,096, bfloat16: 2,237 TFLOP/s at 4,000 rows"
        ", 111.8 % of the reference (2,000 TFLOP/s bfloat16: measured baseline)"
        "; half of the full rate takes 2,000 rows. An expert gets 1,000 rows at the median."
    )
    assert panel.notes == (
        "Shapes are recorded for 90.0 % of the products' time; the rest is left out.",
        "Model FLOPs utilisation: at least 31.0 % of the dense peak.",
    )


def test_kinds_of_loss_sum_to_the_loss_in_every_row() -> None:
    for panel in (panels_gemm.losses_panel(example()), panels_gemm.layer_losses_panel(example())):
        (table,) = panel.tables
        for row in table.rows:
            assert sum(row[5:]) == row[4]
    reading = panels_gemm.losses_panel(example()).reading
    assert "lose 370 µs of 1.37 ms per rank and step (27.0 %)" in reading
    assert reading.endswith("most to wave quantisation (300 µs).")
    labels = [row[0] for row in panels_gemm.losses_panel(example()).tables[0].rows]
    assert labels == ["64–127", "≥ 2,048", "all experts", "other products"]


def test_what_is_missing_is_named() -> None:
    without = bare()
    for make in (panels_gemm.rates_panel, panels_gemm.losses_panel, panels_gemm.layer_losses_panel):
        empty = make(without).empty
        assert empty is not None
        assert "record_shapes=True" in empty.how_to_record
    untimed = replace(gemm_example(), curves=(), layers=(), buckets=(), experts=NOTHING, other=NOTHING)
    analysis = replace(without, gemm=untimed)
    assert panels_gemm.rates_panel(analysis).empty == panels_gemm.NO_PRODUCTS
    assert panels_gemm.losses_panel(analysis).empty == panels_gemm.NO_PRODUCTS
    assert panels_gemm.layer_losses_panel(analysis).empty == panels_gemm.NO_LAYERS
    for draw in (figures_gemm.rates_figure, figures_gemm.losses_figure, figures_gemm.layer_losses_figure):
        with pytest.raises(ValueError, match="no "):
            draw(analysis)


def test_products_of_unknown_owners_are_not_called_the_experts() -> None:
    analysis = replace(
        example(), gemm=replace(gemm_example(), experts=NOTHING, other=gemm_example().experts, buckets=())
    )
    panel = panels_gemm.losses_panel(analysis)
    assert panel.reading.startswith("Matrix products (none is known to be the experts')")
    assert [row[0] for row in panel.tables[0].rows] == ["other products"]


def test_rates_figure_shows_points_line_and_references() -> None:
    figure = figures_gemm.rates_figure(example(), "dark")
    assert [len(trace.x) for trace in figure.data] == [3, panels_gemm.NUM_FIT_POINTS, 1, 0]
    assert sorted(shape.y0 for shape in figure.layout.shapes) == [60.0, 2_000.0]
    assert "measured baseline" in str(figure.layout.shapes[0].label.text)


def test_loss_figures_hold_the_tables_values() -> None:
    for figure, panel in (
        (figures_gemm.losses_figure(example()), panels_gemm.losses_panel(example())),
        (figures_gemm.layer_losses_figure(example()), panels_gemm.layer_losses_panel(example())),
    ):
        drawn = [round(sum(trace.x[i] for trace in figure.data) * 1e6) for i in range(len(figure.data[0].x))]
        assert drawn == [row[4] for row in panel.tables[0].rows][: len(drawn)]


def test_idle_time_by_kind_sums_and_names_the_rank() -> None:
    panel = panels_host.host_panel(example())
    for row in panel.tables[0].rows:
        assert sum(row[4:]) == pytest.approx(row[2])
        assert row[2] == pytest.approx(2_300_000 + 1_450_000 + 210_000 + 380_000)
    assert panel.reading.startswith("Rank 0 is idle longest, 4.34 ms per step")
    assert panel.reading.endswith("2.30 ms of it because the host had not launched the next work yet.")
    figure = figures_gemm.host_figure(example())
    assert [trace.name for trace in figure.data] == ["Host launch", "Synchronising", "Dependency", "Launch gap"]
    assert sum(trace.x[0] for trace in figure.data) == pytest.approx(4.34)


def test_host_panel_without_steps_or_idle_time_says_so() -> None:
    assert panels_host.host_panel(replace(bare(), ranks=())).empty == panels_host.NO_STEPS
    busy = tuple(
        replace(row, parts_ns={name: 0 if name in panels_host.HOST_PARTS else ns for name, ns in row.parts_ns.items()})
        for row in bare().ranks
    )
    assert panels_host.host_panel(replace(bare(), ranks=busy)).empty == panels_host.NOT_IDLE
    with pytest.raises(ValueError, match="nothing idle"):
        figures_gemm.host_figure(replace(bare(), ranks=busy))


def test_kinds_of_idle_time_and_loss_have_colours_of_their_own() -> None:
    colours = [figures_gemm.host_colour(part, LIGHT) for part in panels_host.HOST_PARTS]
    assert len(set(colours)) == len(colours)
    assert len(set(figures_gemm.LOSS_COLOURS.values())) == len(panels_gemm.LOSSES)
