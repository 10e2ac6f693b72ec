"""Routers, a layer's history and traffic between hosts: from telemetry to the panels' sentences."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from analysis_fixture import bare, example
from moescope_hooks.schema import empty_table

from moescope.telemetry.reader import Telemetry
from moescope.views.assemble.router import routers, traffic
from moescope.views.figures import router as figures_router
from moescope.views.model.router import HostTraffic
from moescope.views.panels.router import history_panel, routers_panel, traffic_matrix, traffic_panel

HOSTS = {0: "a", 1: "a", 2: "b", 3: "b"}


def telemetry(*, load: list[dict] | None = None, sent: list[dict] | None = None) -> Telemetry:
    """Rows over the tables' schemas, whatever they lack null; four ranks in one group, two on each host."""
    given = {"expert_load": load, "collective": sent, "step": None, "clock": None}
    blanks = {name: empty_table(name) for name in given}
    frames = {
        name: pl.DataFrame([dict.fromkeys(blanks[name].columns) | row for row in rows], schema=blanks[name].schema)
        if rows
        else blanks[name]
        for name, rows in given.items()
    }
    return Telemetry({"parallel": {"ep_groups": [[0, 1, 2, 3]]}}, **frames)


def test_routers_are_means_and_shares_per_layer() -> None:
    rows = [
        {"layer": 0, "counts": [6, 2], "dropped": [1, 0], "margin": 0.1, "entropy": 0.5, "bf16_flips": 1},
        {"layer": 0, "counts": [4, 4], "dropped": [0, 0], "margin": 0.3, "entropy": 0.7, "bf16_flips": 3},
        {"layer": 0, "counts": [8, 0], "dropped": [0, 0], "margin": None, "entropy": None, "bf16_flips": None},
        {"layer": 1, "counts": [4, 4], "dropped": None, "margin": None, "entropy": None, "bf16_flips": None},
    ]
    first, second = routers(telemetry(load=rows))
    assert (first.margin, first.entropy) == (pytest.approx(0.2), pytest.approx(0.6))
    assert (first.flipped_share, first.dropped_share) == (4 / 16, 1 / 24)
    assert (second.margin, second.entropy, second.flipped_share, second.dropped_share) == (None,) * 4
    assert routers(telemetry()) == routers(None) == ()


def test_traffic_is_summed_by_host_over_both_exchanges_per_step() -> None:
    rows = [
        {"rank": 0, "step": 1, "phase": "dispatch", "send_bytes": [1, 2, 3, 4]},
        {"rank": 0, "step": 1, "phase": "combine", "send_bytes": [10, 20, 30, 40]},
        {"rank": 3, "step": 2, "phase": "dispatch", "send_bytes": [5, 0, 0, 7]},
        {"rank": 3, "step": 2, "phase": "grad_reduce", "send_bytes": [99]},
    ]
    found = {(one.source, one.target): one.bytes_per_step for one in traffic(telemetry(sent=rows), HOSTS)}
    assert found == {("a", "a"): 16, ("a", "b"): 38, ("b", "a"): 2, ("b", "b"): 4}
    assert traffic(None, HOSTS) == traffic(telemetry(), HOSTS) == ()


def test_traffic_panel_says_what_leaves_its_host() -> None:
    analysis = replace(example(), traffic=(HostTraffic("a", "a", 3 << 20), HostTraffic("a", "b", 1 << 20)))
    panel = traffic_panel(analysis)
    assert "1.00 MiB of it (25.0 %) goes to another host" in panel.reading
    assert traffic_matrix(analysis).values == ((3 << 20, 1 << 20), (None, None))


def test_router_panel_names_the_layers() -> None:
    panel = routers_panel(example())
    assert panel.reading.startswith("Layer 0 decides by the smallest margin, 0.02")
    assert "(layer 0)" in panel.reading
    assert "layer 2 drops most, 2.0" in panel.reading


def test_history_follows_the_layer_that_is_asked_for() -> None:
    analysis = example(num_steps=3)
    worst = max(analysis.load.layers, key=lambda one: one.maxvio_rank).layer
    assert history_panel(analysis).reading.startswith(f"Layer {worst}")
    assert history_panel(analysis, 1).reading.startswith("Layer 1")
    assert history_panel(analysis, 99).reading.startswith(f"Layer {worst}")
    figure = figures_router.history_figure(analysis, "dark", 1)
    assert [trace.name for trace in figure.data][-3:] == ["layer 1", "its worst microbatch", "random floor"]
    assert len(figure.data[-3].x) == 3


def test_without_telemetry_the_panels_say_what_to_record() -> None:
    for panel in (routers_panel(bare()), traffic_panel(bare()), history_panel(bare())):
        assert panel.empty is not None
        assert "observe" in panel.empty.how_to_record
    for draw in (figures_router.routers_figure, figures_router.traffic_figure, figures_router.history_figure):
        with pytest.raises(ValueError, match="no "):
            draw(bare())
