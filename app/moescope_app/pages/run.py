"""What was run and read, what is missing, and how well the clocks line up."""

from __future__ import annotations

from dash import html

from moescope.views.figures import lines as figures_lines
from moescope.views.panels.comm import clock_panel
from moescope.views.panels.run import missing_panel, provenance_panel, sources_panel
from moescope_app.pages import View
from moescope_app.widgets import panel


def render(view: View) -> html.Div:
    """The page."""
    analysis, slug = view.analysis, view.slug
    clock = (lambda: figures_lines.clock_figure(analysis, view.theme)) if len(analysis.clock) > 1 else None
    return html.Div(
        [
            panel(slug, missing_panel(analysis)),
            panel(slug, clock_panel(analysis), clock),
            panel(slug, sources_panel(analysis)),
            panel(slug, provenance_panel(analysis)),
        ]
    )
