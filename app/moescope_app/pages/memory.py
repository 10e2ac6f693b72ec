"""Memory curves, the peaks taken apart, what tokens take, and allocator snapshots."""

from __future__ import annotations

from dash import html

from moescope.views.figures import lines as figures_lines
from moescope.views.panels.memory import (
    driver_panel,
    snapshots_panel,
    step_peaks_panel,
    tokens_panel,
    trades_panel,
)
from moescope.views.panels.run import memory_panel, peaks_panel
from moescope_app.pages import View
from moescope_app.widgets import panel


def render(view: View) -> html.Div:
    """The page."""
    analysis, slug, theme = view.analysis, view.slug, view.theme
    curves = any(m.series for m in analysis.memory)
    figure = (lambda: figures_lines.memory_figure(analysis, theme, view.rank)) if curves else None
    return html.Div(
        [
            panel(slug, memory_panel(analysis), figure),
            panel(slug, peaks_panel(analysis), lambda: figures_lines.peaks_figure(analysis, theme)),
            panel(slug, tokens_panel(analysis)),
            panel(slug, trades_panel(analysis)),
            panel(slug, driver_panel(analysis)),
            panel(slug, step_peaks_panel(analysis)),
            panel(slug, snapshots_panel(analysis)),
        ]
    )
