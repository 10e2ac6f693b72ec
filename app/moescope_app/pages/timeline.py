"""The timeline: an element that ``assets/timeline_start.js`` turns into a canvas."""

from __future__ import annotations

from dash import html

from moescope_app.pages import View
from moescope_app.widgets import data


def render(view: View) -> html.Div:
    """The page."""
    return html.Div(html.Div(id="timeline", className="timeline", **data(run=view.slug)), className="timeline-page")
