"""What pages are made of: cards of findings, panels with chart, reading and table, empty states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import plotly.graph_objects as go
from dash import dcc, html
from dash.development.base_component import Component

from moescope.findings.model import Finding
from moescope.views.links import Target, cost, evidence, moment, numbers
from moescope.views.model import Analysis
from moescope.views.panels import Empty, Panel

Figure = Callable[[], go.Figure]
Child = str | int | float | Component | None
GRAPH_CONFIG: dict[str, Any] = {"displayModeBar": False, "responsive": True, "doubleClick": "reset"}


def data(**values: str) -> dict[str, Any]:
    """``data-`` attributes for the scripts in ``assets``."""
    return {f"data-{name}": value for name, value in values.items()}


def page_path(slug: str, page: str, query: str = "") -> str:
    """The address of a page of a run."""
    return f"/r/{quote(slug)}/{page}" + (f"?{query}" if query else "")


def link(text: str, slug: str, target: Target) -> dcc.Link:
    """A link to a place in the dashboard."""
    return dcc.Link(text, href=page_path(slug, target.page, target.query))


def panel(slug: str, shown: Panel, figure: Figure | None = None, *, wide: bool = True) -> html.Section:
    """A panel: title, question and reading above its chart, its table below; or why it is empty."""
    kind = "panel" if wide else "panel half"
    head: list[Child] = [html.Div([html.H2(shown.title), html.P(shown.question, className="question")])]
    if shown.empty:
        return html.Section([html.Div(head, className="head"), empty(shown.empty)], className=kind, id=shown.key)
    head.append(_actions(slug, shown, figure is not None))
    body: list[Child] = [html.Div(head, className="head"), html.P(shown.reading, className="reading")]
    if figure is not None:
        chart = figure().update_layout(uirevision=f"{slug}/{shown.key}")
        body.append(dcc.Graph(figure=chart, config=GRAPH_CONFIG, className="graph"))  # type: ignore[arg-type]
    body += [html.P(note, className="note") for note in shown.notes]
    table = html.Div(className="table", **data(src=f"/data/{quote(slug)}/{shown.key}.json"))
    body.append(html.Details([html.Summary("Data table"), table]) if figure is not None else table)
    return html.Section(body, className=kind, id=shown.key)


def _actions(slug: str, shown: Panel, chart: bool) -> html.Div:
    pictures: list[Child] = [
        html.Button(kind.upper(), className="action", title="Save this chart", **data(picture=kind))
        for kind in (("png", "svg") if chart else ())
    ]
    tables: list[Child] = [
        html.A(
            "CSV" if len(shown.tables) == 1 else f"CSV: {table.key}",
            href=f"/data/{quote(slug)}/{shown.key}-{table.key}.csv",
            className="action",
            title="Save this table with raw values",
        )
        for table in shown.tables
    ]
    return html.Div([*pictures, *tables], className="actions")


def empty(reason: Empty) -> html.Div:
    """Why there is nothing, and how to record what is missing."""
    lines: list[Child] = [html.P(reason.missing)]
    if reason.how_to_record:
        lines.append(html.P([html.B("To record it: "), reason.how_to_record]))
    return html.Div(lines, className="empty")


def finding_card(analysis: Analysis, slug: str, finding: Finding) -> html.Article:
    """One line of the verdict with its cost, what to try, and where to look."""
    tags: list[Child] = [html.Span(finding.severity, className="severity"), html.Code(finding.code)]
    if finding.rank is not None:
        tags.append(html.Span(f"rank {finding.rank}"))
    if finding.layer is not None:
        tags.append(html.Span(f"layer {finding.layer}"))
    body: list[Child] = [html.P(tags, className="tags"), html.H3(finding.claim)]
    if finding.advice:
        body.append(html.P([html.B("Try: "), finding.advice]))
    places: list[Child] = [link("see the evidence", slug, evidence(finding))]
    when = moment(analysis, finding)
    if when is not None:
        places += [" · ", link("show it on the timeline", slug, when)]
    where: list[Child] = [html.P([f"Confidence {finding.confidence} · {finding.basis} · ", *places], className="meta")]
    terms: list[Child] = []
    for name, value in numbers(finding):
        terms += [html.Dt(name), html.Dd(value)]
    if terms:
        where.append(html.Details([html.Summary("where the number comes from"), html.Dl(terms)]))
    body.append(html.Div(where, className="where"))
    known = cost(finding)
    amount: list[Child] = (
        [html.B(known[0]), html.Span(f"{known[1]} of the step")] if known else [html.Span("no cost of its own")]
    )
    sides: list[Child] = [html.Div(amount, className="cost"), html.Div(body, className="claim")]
    return html.Article(sides, className=f"finding {finding.severity}")
