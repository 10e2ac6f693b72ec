"""All figures of one run by the key of their panel, for notebooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from plotly.graph_objects import Figure

from moescope.views import figures
from moescope.views.figures import gemm as figures_gemm
from moescope.views.figures import heat as figures_heat
from moescope.views.figures import lines as figures_lines
from moescope.views.figures import router as figures_router
from moescope.views.model import Analysis

__all__ = ["FIGURES", "Figure"]

FIGURES: Mapping[str, Callable[[Analysis, str], Figure]] = {
    "parts": figures.parts_figure,
    "waits": figures.waits_figure,
    "edges": figures_heat.edges_figure,
    "stragglers": figures_heat.stragglers_figure,
    "transfers": figures_lines.transfers_figure,
    "ranks": figures_heat.ranks_figure,
    "experts": figures_heat.experts_figure,
    "intervals": figures_heat.intervals_figure,
    "history": figures_router.history_figure,
    "routers": figures_router.routers_figure,
    "traffic": figures_router.traffic_figure,
    "rates": figures_gemm.rates_figure,
    "losses": figures_gemm.losses_figure,
    "layerlosses": figures_gemm.layer_losses_figure,
    "host": figures_gemm.host_figure,
    "memory": figures_lines.memory_figure,
    "peaks": figures_lines.peaks_figure,
    "steps": figures_lines.steps_figure,
    "clock": figures_lines.clock_figure,
}
"""Panel key -> what draws it; ``ValueError`` where that panel has nothing to draw."""
