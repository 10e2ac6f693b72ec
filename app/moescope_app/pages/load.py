"""Load of ranks and experts by layer, over the short intervals that means hide, and what the routers say."""

from __future__ import annotations

from dash import dcc, html

from moescope.views.figures import heat as figures_heat
from moescope.views.figures import router as figures_router
from moescope.views.panels.load import expert_panel, interval_panel, rank_panel
from moescope.views.panels.router import chosen_layer, history_panel, routers_panel, traffic_panel
from moescope_app.pages import View
from moescope_app.widgets import Child, page_path, panel


def render(view: View) -> html.Div:
    """The page."""
    analysis, slug, theme, layer = view.analysis, view.slug, view.theme, view.layer
    return html.Div(
        [
            panel(slug, rank_panel(analysis), lambda: figures_heat.ranks_figure(analysis, theme, layer)),
            panel(slug, expert_panel(analysis), lambda: figures_heat.experts_figure(analysis, theme, layer)),
            panel(slug, interval_panel(analysis), lambda: figures_heat.intervals_figure(analysis, theme)),
            panel(slug, history_panel(analysis, layer), lambda: figures_router.history_figure(analysis, theme, layer)),
            html.P(_layers(view), className="note layers"),
            panel(slug, routers_panel(analysis), lambda: figures_router.routers_figure(analysis, theme)),
            panel(slug, traffic_panel(analysis), lambda: figures_router.traffic_figure(analysis, theme)),
        ]
    )


def _layers(view: View) -> list[Child]:
    """Links to the history of every layer."""
    load = view.analysis.load
    if load is None or not load.intervals:
        return []
    chosen, links = chosen_layer(load, view.layer), list[Child](["Layer "])
    for one in load.layers:
        address = page_path(view.slug, "load", f"layer={one.layer}#history")
        links += [html.B(str(one.layer)) if one.layer == chosen else dcc.Link(str(one.layer), href=address), " "]
    return links
