"""Waits against transfers, who waits for whom and when, groups, bandwidth against size, expensive collectives."""

from __future__ import annotations

from dash import html

from moescope.views import figures
from moescope.views.figures import heat as figures_heat
from moescope.views.figures import lines as figures_lines
from moescope.views.panels.comm import collectives_panel, edges_panel, transfers_panel, waits_panel
from moescope.views.panels.groups import groups_panel, stragglers_panel
from moescope.views.panels.library import library_panel
from moescope_app.pages import View
from moescope_app.widgets import panel


def render(view: View) -> html.Div:
    """The page."""
    analysis, slug, theme = view.analysis, view.slug, view.theme
    return html.Div(
        [
            panel(slug, waits_panel(analysis), lambda: figures.waits_figure(analysis, theme)),
            panel(slug, edges_panel(analysis), lambda: figures_heat.edges_figure(analysis, theme)),
            panel(slug, stragglers_panel(analysis), lambda: figures_heat.stragglers_figure(analysis, theme)),
            panel(slug, groups_panel(analysis)),
            panel(slug, transfers_panel(analysis), lambda: figures_lines.transfers_figure(analysis, theme)),
            panel(slug, collectives_panel(analysis)),
            panel(slug, library_panel(analysis)),
        ]
    )
