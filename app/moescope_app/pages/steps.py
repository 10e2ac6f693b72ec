"""The run's steps, profiled or not."""

from __future__ import annotations

from dash import html

from moescope.views.figures import lines as figures_lines
from moescope.views.panels.step import steps_panel
from moescope_app.pages import View
from moescope_app.widgets import panel


def render(view: View) -> html.Div:
    """The page."""
    return html.Div(
        [panel(view.slug, steps_panel(view.analysis), lambda: figures_lines.steps_figure(view.analysis, view.theme))]
    )
