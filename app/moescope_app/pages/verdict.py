"""The verdict in one glance, then where every rank's step goes and who made it wait."""

from __future__ import annotations

import plotly.graph_objects as go
from dash import html

from moescope.views import figures
from moescope.views.figures import heat as figures_heat
from moescope.views.panels import Empty
from moescope.views.panels.comm import edges_panel
from moescope.views.panels.path import path_panel
from moescope.views.panels.step import causes_panel, headline, parts_panel
from moescope_app.pages import View
from moescope_app.widgets import Child, empty, finding_card, panel

MOST_FINDINGS = 5
HALF_WIDTH_COLUMNS = 6
NOTHING = Empty(
    "No finding: nothing in this input supports one.", "The Run page lists what is missing and what would record it."
)


def _edges(view: View) -> go.Figure:
    return figures_heat.edges_figure(view.analysis, view.theme, most_written=HALF_WIDTH_COLUMNS)


def render(view: View) -> html.Div:
    """The page."""
    analysis, slug, theme = view.analysis, view.slug, view.theme
    facts = [html.Div([html.Dt(label), html.Dd(value)]) for label, value in headline(analysis)]
    cards = [finding_card(analysis, slug, finding) for finding in analysis.findings]
    first: list[Child] = [html.Dl(facts, className="facts")]
    first += cards[:MOST_FINDINGS] or [empty(NOTHING)]
    if len(cards) > MOST_FINDINGS:
        first.append(html.Details([html.Summary(f"{len(cards) - MOST_FINDINGS} more"), *cards[MOST_FINDINGS:]]))
    return html.Div(
        [
            html.Section(first, className="verdict"),
            panel(slug, parts_panel(analysis), lambda: figures.parts_figure(analysis, theme)),
            html.Div(
                [
                    panel(slug, edges_panel(analysis), lambda: _edges(view), wide=False),
                    panel(slug, causes_panel(analysis), wide=False),
                ],
                className="columns",
            ),
            panel(slug, path_panel(analysis)),
        ]
    )
