"""Routes beside Dash's own: tables as JSON and CSV, the palette as a style sheet. None of them takes a path."""

from __future__ import annotations

import json
from importlib import resources

from flask import Flask, Response, abort

from moescope.views.catalog import PANELS
from moescope.views.compare import compare
from moescope.views.links import cost
from moescope.views.model import Analysis
from moescope.views.panels import Panel, Table
from moescope.views.panels.compare import COMPARE_PANELS
from moescope.views.panels.runs import runs_panel
from moescope.views.panels.step import headline
from moescope.views.theme import theme_css
from moescope.views.timeline.script import script, style
from moescope_app.pages.verdict import MOST_FINDINGS
from moescope_app.runs import Runs
from moescope_app.shell import notices

MOST_ROWS = 2000
STYLE = theme_css() + style()
EARLY_SCRIPT = script() + "".join(
    resources.files("moescope_app").joinpath("assets", name).read_text("utf-8")
    for name in ("verdict_early.js", "timeline_data.js", "timeline_start.js")
)
"""What shows the verdict or the timeline before the dashboard's frame has loaded."""


def add_routes(server: Flask, runs: Runs) -> None:
    """Register the routes."""

    @server.get("/theme.css")
    def theme() -> Response:
        return Response(STYLE, mimetype="text/css", headers={"Cache-Control": "no-cache"})

    @server.get("/early/", defaults={"slug": ""})
    @server.get("/early/<slug>")
    def early(slug: str) -> Response:
        runs_there = list(runs)
        run = runs.get(slug) if slug else (runs_there[0] if len(runs_there) == 1 else None)
        if run is not None:
            runs.ask(run)
        if run is None or run.analysis is None:
            return Response(status=204)
        return Response(json.dumps(early_verdict(run.analysis)), mimetype="application/json")

    @server.get("/early.js")
    def early_script() -> Response:
        return Response(EARLY_SCRIPT, mimetype="text/javascript", headers={"Cache-Control": "no-cache"})

    @server.get("/data/<slug>/<key>.json")
    def tables(slug: str, key: str) -> Response:
        panel = _panel(runs, slug, key)
        body = {"ok": True, "tables": [_as_json(table) for table in panel.tables]}
        return Response(json.dumps(body), mimetype="application/json")

    @server.get("/data/<slug>/<key>-<table>.csv")
    def csv(slug: str, key: str, table: str) -> Response:
        for one in _panel(runs, slug, key).tables:
            if one.key == table:
                name = f"{slug}-{one.key}.csv"
                headers = {"Content-Disposition": f'attachment; filename="{name}"'}
                return Response(one.to_csv(), mimetype="text/csv", headers=headers)
        return abort(404)


def early_verdict(analysis: Analysis) -> dict[str, object]:
    """What the verdict page shows before its frame has loaded; the same texts as in :mod:`.pages.verdict`."""
    findings = []
    for finding in analysis.findings[:MOST_FINDINGS]:
        amount, share = cost(finding) or ("", "")
        about = {"severity": finding.severity, "code": finding.code, "claim": finding.claim, "advice": finding.advice}
        meta = f"Confidence {finding.confidence} · {finding.basis}"
        findings.append({**about, "meta": meta, "cost": amount, "share": share})
    return {"notes": notices(analysis), "facts": headline(analysis), "findings": findings}


def analysed(runs: Runs, slug: str) -> Analysis:
    """The finished analysis of a run; 404 where there is no such run, 409 where it isn't finished."""
    run = runs.get(slug)
    if run is None:
        abort(404)
    if run.analysis is None:
        abort(409, "The analysis of this folder has not finished.")
    return run.analysis


def _panel(runs: Runs, slug: str, key: str) -> Panel:
    """A panel of one run, or of several whose slugs are joined by tildes, which no slug holds."""
    if key == "runs":
        return runs_panel([analysed(runs, one) for one in slug.split("~")])
    first, tilde, second = slug.partition("~")
    if tilde:
        make_pair = COMPARE_PANELS.get(key)
        if make_pair is None:
            abort(404)
        return make_pair(compare(analysed(runs, first), analysed(runs, second)))
    make = PANELS.get(key)
    if make is None:
        abort(404)
    return make(analysed(runs, slug))


def _as_json(table: Table) -> dict[str, object]:
    shown = table.rows[:MOST_ROWS]
    return {
        "key": table.key,
        "caption": table.caption,
        "columns": [{"title": c.title, "numeric": c.numeric} for c in table.columns],
        "texts": [[c.show(v) for c, v in zip(table.columns, row, strict=True)] for row in shown],
        "values": [list(row) for row in shown],
        "num_rows": len(table.rows),
    }
