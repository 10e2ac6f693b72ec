"""What keeps devices idle."""

from __future__ import annotations

from dash import html

from moescope.views import figures_gemm
from moescope.views.panels_host import host_panel
from moescope_app.pages import View
from moescope_app.widgets import panel


def render(view: View) -> html.Div:
    """The page."""
    return html.Div(
        panel(view.slug, host_panel(view.analysis), lambda: figures_gemm.host_figure(view.analysis, view.theme))
    )
