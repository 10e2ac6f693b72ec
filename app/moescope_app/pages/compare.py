"""Two of the served runs side by side, then all of them."""

from __future__ import annotations

from collections.abc import Sequence

from dash import dcc, html

from moescope.views.compare import Side, compare
from moescope.views.compare.text import MISFIT
from moescope.views.figures import compare as figures_compare
from moescope.views.panels import Empty, Panel
from moescope.views.panels.compare import figures_panel, settings_panel, sides_panel, times_panel, verdicts_panel
from moescope.views.panels.runs import runs_panel
from moescope.views.text import plural
from moescope_app.pages import View
from moescope_app.widgets import Child, page_path, panel

NO_OTHER = Empty("Only one run is served.", "Serve several: moescope serve A B.")


def render(view: View) -> html.Div:
    """The page: run A is the one it is opened for, run B the one asked for ``with``."""
    if view.other is None:
        return html.Div(panel(view.slug, Panel("sides", "Compare", "What changed between two runs?", empty=NO_OTHER)))
    comparison, pair = compare(view.analysis, view.other), f"{view.slug}~{view.other_slug}"
    times = (lambda: figures_compare.differences_figure(comparison, view.theme)) if _both(view) else None
    return html.Div(
        [
            html.Section(
                [
                    _side("A", comparison.a),
                    _side("B", comparison.b),
                    *_misfits(comparison.misfits),
                    html.P(_choices(view), className="note"),
                ],
                className="sides",
            ),
            panel(pair, sides_panel(comparison), lambda: figures_compare.sides_figure(comparison, view.theme)),
            panel(pair, times_panel(comparison), times),
            panel(pair, figures_panel(comparison)),
            panel(pair, verdicts_panel(comparison)),
            panel(pair, settings_panel(comparison)),
            *_everyone(view),
        ]
    )


def _misfits(misfits: Sequence[str]) -> list[html.P]:
    """In what kind the runs differ."""
    return [html.P([html.B(MISFIT), f" {' '.join(misfits)}"], className="banner")] if misfits else []


def _everyone(view: View) -> list[html.Section]:
    """All served runs, where there are more than the two."""
    if not view.everyone:
        return []
    slugs, analyses = "~".join(slug for slug, _ in view.everyone), [analysis for _, analysis in view.everyone]
    figure = (lambda: figures_compare.runs_figure(analyses, view.theme)) if any(a.steps for a in analyses) else None
    return [panel(slugs, runs_panel(analyses), figure)]


def _both(view: View) -> bool:
    return view.other is not None and bool(view.analysis.steps and view.other.steps)


def _side(letter: str, side: Side) -> html.P:
    facts = [plural(side.num_ranks, "rank"), plural(side.num_steps, "profiled step"), side.basis, *side.controls]
    return html.P([html.B(f"{letter}: {side.name} "), " · ".join(facts)])


def _choices(view: View) -> list[Child]:
    """Links that turn the sides round or put another run in B's place."""
    turned = page_path(view.other_slug, "compare", f"with={view.slug}")
    links: list[Child] = [dcc.Link("Turn round", href=turned)]
    for slug, name in view.others:
        if slug != view.other_slug:
            links += [" · ", dcc.Link(f"B: {name}", href=page_path(view.slug, "compare", f"with={slug}"))]
    return links
