"""The Dash application and the server that carries it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from urllib.parse import parse_qs, unquote

import dash
from dash import Dash, Input, Output, State

from moescope.views.model import Analysis
from moescope_app.calls import refuse_other_calls
from moescope_app.data import add_routes
from moescope_app.pages import View
from moescope_app.rendered import Rendered
from moescope_app.runs import Run, Runs
from moescope_app.security import protect
from moescope_app.shell import INDEX, banner, first_page, header, layout, not_found, progress_page, version_mark
from moescope_app.tabs import TABS
from moescope_app.timeline_routes import add_timeline_routes
from moescope_app.widgets import Child

POLL_MS = 400
LIVE_MS = 3000
"""Between two questions of a page whether its run has gone on."""
Shown = tuple[list[Child], list[Child], bool, str]
"""Header, page, whether progress needs no polling, and the version of the runs that the page shows."""


def create_app(
    runs: Runs, *, host: str = "127.0.0.1", port: int = 8050, token: str | None = None, live_ms: int = LIVE_MS
) -> Dash:
    """Build the application over ``runs``; nothing is analysed before it is asked for.

    An open page asks every ``live_ms`` whether its run has gone on.
    """
    app = Dash(
        "moescope_app",
        assets_folder=str(resources.files("moescope_app") / "assets"),
        assets_ignore=r"(theme|frame|verdict_early|timeline_data|timeline_start)\.js$",
        index_string=INDEX,
        title="moescope",
        update_title="",
        suppress_callback_exceptions=True,
        enable_mcp=False,
        add_log_handler=False,
    )
    app.layout = layout(POLL_MS, live_ms)
    _add_callbacks(app, runs)
    add_routes(app.server, runs)
    add_timeline_routes(app.server, runs)
    protect(app.server, host=host, port=port, token=token, script_hashes=app.csp_hashes())
    refuse_other_calls(app.server, app.callback_map)
    return app


def _add_callbacks(app: Dash, runs: Runs) -> None:
    rendered = Rendered()
    app.clientside_callback(  # type: ignore[no-untyped-call]
        "function(clicks) { return window.moescopeTheme(clicks); }",
        Output("theme", "data"),
        Input("theme-button", "n_clicks"),
    )

    @app.callback(
        Output("top", "children"),
        Output("page", "children"),
        Output("tick", "disabled"),
        Output("shown", "data"),
        Input("url", "pathname"),
        Input("url", "search"),
        Input("theme", "data"),
        Input("tick", "n_intervals"),
    )
    def show(pathname: str | None, search: str | None, theme: str | None, _ticks: int | None) -> Shown:
        if theme not in ("light", "dark"):
            raise dash.exceptions.PreventUpdate
        return _shown(runs, rendered, pathname or "/", search or "", theme)

    @app.callback(
        Output("top", "children", allow_duplicate=True),
        Output("page", "children", allow_duplicate=True),
        Output("tick", "disabled", allow_duplicate=True),
        Output("shown", "data", allow_duplicate=True),
        Input("live", "n_intervals"),
        State("url", "pathname"),
        State("url", "search"),
        State("theme", "data"),
        State("shown", "data"),
        prevent_initial_call=True,
    )
    def refresh(_ticks: int, pathname: str | None, search: str | None, theme: str | None, shown: str | None) -> Shown:
        concerned = _concerned(runs, pathname or "/", search or "")
        for run in concerned:
            runs.look(run)
        if shown is None or theme not in ("light", "dark") or shown == _version(concerned):
            raise dash.exceptions.PreventUpdate
        return _shown(runs, rendered, pathname or "/", search or "", theme)

    @app.callback(
        Output("tick", "disabled", allow_duplicate=True),
        Input({"action": "analysis", "run": dash.ALL, "what": dash.ALL}, "n_clicks"),
        State({"action": "analysis", "run": dash.ALL, "what": dash.ALL}, "id"),
        prevent_initial_call=True,
    )
    def act(clicks: list[int | None], ids: list[dict[str, str]]) -> bool:
        for count, target in zip(clicks, ids, strict=False):
            run = runs.get(target["run"])
            if count and run is not None:
                (runs.cancel if target["what"] == "cancel" else runs.again)(run)
                return False
        raise dash.exceptions.PreventUpdate


def _concerned(runs: Runs, pathname: str, search: str) -> list[Run]:
    """The runs that a page shows."""
    run, key = _address(runs, pathname)
    if run is None:
        return list(runs) if pathname.strip("/") == "" else []
    other = _other(runs, run, search) if key == "compare" else None
    return [run] if other is None else [run, other]


def _version(concerned: Sequence[Run]) -> str:
    return " ".join(run.version for run in concerned)


def _shown(runs: Runs, rendered: Rendered, pathname: str, search: str, theme: str) -> Shown:
    version = _version(_concerned(runs, pathname, search))
    top, page, is_settled = _page(runs, rendered, pathname, search, theme)
    return top, [*page, version_mark(version)], is_settled, version


def _page(
    runs: Runs, rendered: Rendered, pathname: str, search: str, theme: str
) -> tuple[list[Child], list[Child], bool]:
    run, key = _address(runs, pathname)
    if run is None and pathname.strip("/") == "":
        for one in runs:
            runs.ask(one)
        pending = any(one.status.pending for one in runs)
        return header(runs, None, ""), [first_page(runs)], not pending
    if run is None or key not in TABS:
        return header(runs, run, ""), [not_found()], True
    status = runs.ask(run)
    analysis = run.analysis
    if analysis is None:
        return header(runs, run, key), [progress_page(run, status)], not status.pending
    view = _view(analysis, run.slug, search, theme)
    other = _other(runs, run, search) if key == "compare" else None
    if other is not None:
        status = runs.ask(other)
        if other.analysis is None:
            return header(runs, run, key), [progress_page(other, status)], not status.pending
        view = _beside(view, other, runs)
    page = rendered.page(key, view)
    return header(runs, run, key), [banner(analysis), page], True


def _other(runs: Runs, run: Run, search: str) -> Run | None:
    """The run to compare with: the one asked for, else the first other one."""
    asked = runs.get(parse_qs(search.lstrip("?")).get("with", [""])[0])
    others = [one for one in runs if one is not run]
    return asked if asked in others else next(iter(others), None)


def _address(runs: Runs, pathname: str) -> tuple[Run | None, str]:
    parts = [unquote(part) for part in pathname.strip("/").split("/") if part]
    if not parts:
        only = list(runs)
        return (only[0], "verdict") if len(only) == 1 else (None, "")
    if parts[0] != "r" or len(parts) > 3 or len(parts) < 2:
        return None, ""
    return runs.get(parts[1]), parts[2] if len(parts) == 3 else "verdict"


def _view(analysis: Analysis, slug: str, search: str, theme: str) -> View:
    query = parse_qs(search.lstrip("?"))
    rank, layer, step = (_number(query.get(key)) for key in ("rank", "layer", "step"))
    return View(analysis, slug, theme, rank, layer, step)


def _beside(view: View, other: Run, runs: Runs) -> View:
    others = tuple((one.slug, one.path.name) for one in runs if one.slug != view.slug)
    known = tuple((one.slug, one.analysis) for one in runs if one.analysis is not None)
    everyone = known if len(known) > 2 else ()
    return replace(view, other=other.analysis, other_slug=other.slug, others=others, everyone=everyone)


def _number(values: list[str] | None) -> int | None:
    return int(values[0]) if values and values[0].isdecimal() and len(values[0]) < 10 else None
