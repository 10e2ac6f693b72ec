"""Matrix products: rate against tokens per expert, and what small products lose."""

from __future__ import annotations

from dash import html

from moescope.views.figures import gemm as figures_gemm
from moescope.views.panels.gemm import expert_losses_panel, layer_losses_panel, losses_panel, rates_panel
from moescope_app.pages import View
from moescope_app.widgets import panel


def render(view: View) -> html.Div:
    """The page."""
    analysis, slug, theme = view.analysis, view.slug, view.theme
    buckets = analysis.gemm is not None and analysis.gemm.buckets
    losses = (lambda: figures_gemm.losses_figure(analysis, theme)) if buckets else None
    return html.Div(
        [
            panel(slug, rates_panel(analysis), lambda: figures_gemm.rates_figure(analysis, theme)),
            panel(slug, losses_panel(analysis), losses),
            panel(slug, layer_losses_panel(analysis), lambda: figures_gemm.layer_losses_figure(analysis, theme)),
            panel(slug, expert_losses_panel(analysis)),
        ]
    )
