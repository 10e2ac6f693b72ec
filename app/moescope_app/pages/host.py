"""What keeps devices idle, which operations are behind it, and how work is launched."""

from __future__ import annotations

from dash import html

from moescope.views.figures import gemm as figures_gemm
from moescope.views.panels.host import host_panel, idle_panel, launches_panel
from moescope_app.pages import View
from moescope_app.widgets import panel


def render(view: View) -> html.Div:
    """The page."""
    analysis, slug = view.analysis, view.slug
    return html.Div(
        [
            panel(slug, host_panel(analysis), lambda: figures_gemm.host_figure(analysis, view.theme)),
            panel(slug, idle_panel(analysis)),
            panel(slug, launches_panel(analysis)),
        ]
    )
