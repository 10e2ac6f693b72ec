"""What surrounds the pages: header, tabs, banners, progress, the list of runs."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from moescope.views.model import Analysis
from moescope.views.panels import step_ns
from moescope.views.text import duration, percent, plural
from moescope_app.runs import Run, Runs, Status
from moescope_app.tabs import tabs_for
from moescope_app.widgets import Child, data, page_path

INDEX = """<!doctype html>
<html lang="en">
<head>
{%metas%}
<title>{%title%}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/theme.css">
<script src="/assets/theme.js"></script>
{%css%}
</head>
<body>
<div id="page-early"></div>
<div id="timeline-early"></div>
<script src="/early.js"></script>
{%app_entry%}
<template id="frame">
{%config%}
{%scripts%}
{%renderer%}
</template>
<script src="/assets/frame.js"></script>
</body>
</html>
"""


def labelled(name: str) -> dict[str, Any]:
    """The name of an element for those who don't see it."""
    return {"aria-label": name}


def layout(poll_ms: int, live_ms: int) -> html.Div:
    """The page's frame; callbacks fill it."""
    return html.Div(
        [
            dcc.Location(id="url", refresh="callback-nav"),
            dcc.Store(id="theme"),
            dcc.Store(id="shown"),
            dcc.Interval(id="tick", interval=poll_ms, disabled=True),
            dcc.Interval(id="live", interval=live_ms),
            html.Header(
                [
                    html.Div(id="top"),
                    html.Button("Dark or light", id="theme-button", className="action", title="Switch colours"),
                ]
            ),
            html.Main(id="page"),
        ]
    )


def header(runs: Runs, run: Run | None, page: str) -> list[Child]:
    """Brand, the run, its tabs."""
    name = dcc.Link("moescope", href="/", className="brand")
    if run is None:
        return [name]
    title: list[Child] = [name, html.Span(run.analysis.name if run.analysis else run.path.name, className="name")]
    others = [other for other in runs if other is not run]
    if others:
        links = [dcc.Link(other.path.name, href=page_path(other.slug, page or "verdict")) for other in others]
        title.append(
            html.Details([html.Summary(f"{plural(len(others), 'other run')}"), html.Div(links)], className="others")
        )
    tabs = [
        dcc.Link(
            tab.title, href=page_path(run.slug, tab.key), className="page-tab here" if tab.key == page else "page-tab"
        )
        for tab in tabs_for(1 + len(others))
    ]
    return [html.Div(title, className="title"), html.Nav(tabs, **labelled("Pages"))]


def notices(analysis: Analysis) -> list[str]:
    """What a reader must know before any number: simulated, or with controls on."""
    notes = []
    if analysis.basis == "simulated":
        notes.append("Simulated. Written by a simulator, not recorded on a machine.")
    if analysis.controls:
        notes.append(f"Diagnostic controls were on: {'; '.join(analysis.controls)}")
    return notes


def banner(analysis: Analysis) -> html.Div:
    """The notices, their first words in bold."""
    notes: list[Child] = []
    for note in notices(analysis):
        first, mark, rest = note.partition(": " if note.startswith("Diagnostic") else ". ")
        notes.append(html.P([html.B(first + mark), rest]))
    return html.Div(notes, className="banner" if notes else "no-banner")


def progress_page(run: Run, status: Status) -> html.Section:
    """A first analysis under way, or why it ended without a result."""
    again = html.Button("Analyse again", id=_action(run, "again"), className="action")
    if status.state == "failed":
        text: list[Child] = [html.H2("The analysis failed"), html.P(status.message), html.P(status.hint)]
        return html.Section([*text, again], className="panel")
    if status.state == "cancelled":
        return html.Section([html.H2("The analysis was cancelled"), again], className="panel")
    share = status.done / status.total if status.total else 0.0
    where = f"{status.done} of {status.total} {status.label}".strip() if status.total else "starting"
    stop = html.Button("Cancel", id=_action(run, "cancel"), className="action")
    bar = html.Progress(value=f"{share:.4f}", max="1")
    return html.Section(
        [html.H2(f"Analysing {run.path.name}"), bar, html.P(f"{where} · {percent(share)}"), stop], className="panel"
    )


def _action(run: Run, what: str) -> dict[str, str]:
    return {"action": "analysis", "run": run.slug, "what": what}


def first_page(runs: Runs) -> html.Section:
    """All served runs, each with its first finding."""
    return html.Section(
        [html.H2("Runs"), *(html.Div(_entry(run), className="entry") for run in runs)], className="panel"
    )


def _entry(run: Run) -> list[Child]:
    name = dcc.Link(run.path.name, href=page_path(run.slug, "verdict"), className="entry-name")
    if run.analysis is None:
        return [name, html.Span(run.status.message or run.status.state, className="note")]
    first = run.analysis.findings[0].claim if run.analysis.findings else "No finding."
    step = duration(step_ns(run.analysis) if run.analysis.steps else None)
    return [name, html.Span(f"step {step} · {first}")]


def not_found() -> html.Section:
    """An address that names nothing."""
    return html.Section([html.H2("There is no such page"), dcc.Link("All runs", href="/")], className="panel")


def version_mark(version: str) -> html.Div:
    """Tells ``assets/live.js`` that the same page is drawn anew because its run has gone on."""
    return html.Div(id="version", hidden=True, **data(version=version))
