"""Load of ranks and experts by layer, and over the short intervals that means hide."""

from __future__ import annotations

from dash import html

from moescope.views import figures_heat
from moescope.views.panels_load import expert_panel, interval_panel, rank_panel
from moescope_app.pages import View
from moescope_app.widgets import panel


def render(view: View) -> html.Div:
    """The page."""
    analysis, slug, theme, layer = view.analysis, view.slug, view.theme, view.layer
    return html.Div(
        [
            panel(slug, rank_panel(analysis), lambda: figures_heat.ranks_figure(analysis, theme, layer)),
            panel(slug, expert_panel(analysis), lambda: figures_heat.experts_figure(analysis, theme, layer)),
            panel(slug, interval_panel(analysis), lambda: figures_heat.intervals_figure(analysis, theme)),
        ]
    )
