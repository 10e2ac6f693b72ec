"""In a served page every name is text: no component takes it as markup, an address or a script."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from dash.development.base_component import Component
from hostile_names import MARK, poisoned_run
from moescope_app.pages import View
from moescope_app.runs import Runs
from moescope_app.server import create_app
from moescope_app.shell import banner
from moescope_app.tabs import TABS

HOST = {"Host": "127.0.0.1:8050"}
TEXT_ONLY = {"children", "title", "value", "aria-label", "figure", "data"}
"""What React and Plotly show as text; figures are held to it by a test of their own."""
NEVER = {"Markdown", "Iframe", "Script", "ObjectEl", "Embed", "Base", "Meta", "Form", "Style"}


def components(node: object) -> Iterator[Component]:
    if isinstance(node, Component):
        yield node
        node = getattr(node, "children", None)
    for child in node if isinstance(node, list | tuple) else [node] if isinstance(node, Component) else []:
        yield from components(child)


@pytest.mark.parametrize("key", TABS)
def test_no_component_takes_a_name_as_more_than_text(key: str) -> None:
    run = poisoned_run()
    view = View(run, "run", "light", None, None, None)
    found = [*components(TABS[key].render(view)), *components(banner(run))]
    assert found
    for component in found:
        assert component._type not in NEVER
        for name, value in component.to_plotly_json()["props"].items():
            if isinstance(value, str) and MARK in value:
                assert name in TEXT_ONLY or name.startswith("data-"), (component, name)
            assert name != "href" or str(value).startswith(("/", "#", "http://127.0.0.1")), value


def test_what_is_served_beside_the_pages_is_no_page() -> None:
    runs = Runs([Path("/data/run")], lambda *_: poisoned_run(), lambda *_: None)
    runs.ask(runs.first())
    deadline = time.monotonic() + 60
    while runs.first().status.pending:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    client = create_app(runs).server.test_client()
    slug = runs.first().slug
    for path in (f"/early/{slug}", f"/data/{slug}/sources.json", f"/data/{slug}/parts.json"):
        answer = client.get(path, headers=HOST)
        assert answer.mimetype == "application/json"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert MARK not in client.get("/", headers=HOST).text
