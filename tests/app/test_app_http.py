"""The dashboard through Flask's test client: who may ask, what is answered, what cannot be reached."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

import pytest
from analysis_fixture import HOSTILE, bare, example
from dash import html
from flask.testing import FlaskClient
from moescope_app import rendered as rendered_module
from moescope_app.pages import View
from moescope_app.rendered import Rendered
from moescope_app.runs import Runs, Status
from moescope_app.security import allowed_hosts, content_policy
from moescope_app.server import create_app
from moescope_app.tabs import TABS

from moescope.errors import InputUnreadableError
from moescope.views.catalog import PANELS
from moescope.views.compare import compare
from moescope.views.panels.compare import COMPARE_PANELS

HOST = {"Host": "127.0.0.1:8050"}


def analyse(path: Path, show) -> object:
    show(1, 2, "rank 0")
    if path.name == "broken":
        raise InputUnreadableError("no trace here", hint="Record one.")
    return bare() if path.name == "bare" else example()


class NoTimeline:
    """Stands for a timeline that nobody looks at."""

    def __init__(self, *_: object) -> None:
        pass


def ready(*names: str, token: str | None = None) -> tuple[Runs, FlaskClient]:
    runs = Runs([Path("/data") / name for name in names], analyse, NoTimeline)
    for run in runs:
        runs.ask(run)
        wait_for(lambda run=run: not run.status.pending)
    return runs, create_app(runs, token=token).server.test_client()


def wait_for(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture(scope="module")
def client() -> FlaskClient:
    return ready("skewed", "bare")[1]


def page(client: FlaskClient, pathname: str, search: str = "", theme: str | None = "light") -> dict[str, object]:
    """Call the page callback as the browser does; return its outputs by component."""
    names = [
        ("url", "pathname", pathname),
        ("url", "search", search),
        ("theme", "data", theme),
        ("tick", "n_intervals", 0),
    ]
    outputs = [("top", "children"), ("page", "children"), ("tick", "disabled"), ("shown", "data")]
    body = {
        "output": "..top.children...page.children...tick.disabled...shown.data..",
        "outputs": [{"id": name, "property": prop} for name, prop in outputs],
        "inputs": [{"id": name, "property": prop, "value": value} for name, prop, value in names],
        "changedPropIds": ["url.pathname"],
    }
    answer = client.post("/_dash-update-component", json=body, headers=HOST)
    if answer.status_code == 204:
        return {}
    assert answer.status_code == 200, answer.text
    return answer.get_json()["response"]


def test_every_page_renders_for_full_and_bare_runs(client: FlaskClient) -> None:
    for slug in ("skewed", "bare"):
        for key in ("verdict", "timeline", "load", "communication", "gemm", "memory", "host", "steps", "run"):
            for theme in ("light", "dark"):
                shown = page(client, f"/r/{slug}/{key}", "?rank=2&layer=3", theme)
                assert shown["tick"]["disabled"] is True
                assert "no such page" not in json.dumps(shown)


def test_verdict_shows_findings_with_links_to_evidence(client: FlaskClient) -> None:
    text = json.dumps(page(client, "/r/skewed/verdict"))
    assert "Rank 2 holds the hot experts" in text
    assert "9.19 ms" in text
    assert "/r/skewed/load?rank=2&layer=3" in text
    assert "/r/skewed/timeline?rank=2&t=" in text
    assert "router-bias: +2.0" in text
    assert "nothing in this input supports one" in json.dumps(page(client, "/r/bare/verdict"))


def test_early_verdict_has_the_page_s_own_texts(client: FlaskClient) -> None:
    body = client.get("/early/skewed", headers=HOST).get_json()
    shown = json.dumps(page(client, "/r/skewed/verdict"), ensure_ascii=False)
    for finding in body["findings"]:
        assert json.dumps(finding["claim"], ensure_ascii=False) in shown
        assert json.dumps(finding["cost"], ensure_ascii=False) in shown or not finding["cost"]
    assert next(label for label, _ in body["facts"]) == "Step"
    assert client.get("/early/nowhere", headers=HOST).status_code == 204
    assert client.get("/early/", headers=HOST).status_code == 204  # several runs: the front page is theirs


def test_nothing_is_drawn_before_the_theme_is_known(client: FlaskClient) -> None:
    assert page(client, "/r/skewed/verdict", theme=None) == {}


@pytest.mark.parametrize(
    "path", ["/r/nowhere/verdict", "/r/skewed/nothing", "/x", "/r/skewed/verdict/more", "/r/../etc"]
)
def test_unknown_addresses_say_so(client: FlaskClient, path: str) -> None:
    assert "There is no such page" in json.dumps(page(client, path))


def test_front_page_lists_several_runs_and_opens_a_single_one(client: FlaskClient) -> None:
    text = json.dumps(page(client, "/"))
    assert "/r/skewed/verdict" in text
    assert "/r/bare/verdict" in text
    assert "Rank 2 holds" in json.dumps(page(ready("skewed")[1], "/"))


def test_failed_analysis_says_why_and_offers_another_try() -> None:
    runs, client = ready("broken")
    text = json.dumps(page(client, "/r/broken/verdict"))
    assert "no trace here" in text
    assert "Record one." in text
    assert '"what": "again"' in text
    assert runs.first().status.state == "failed"


def test_table_routes_give_every_panel(client: FlaskClient) -> None:
    for key in PANELS:
        answer = client.get(f"/data/skewed/{key}.json", headers=HOST).get_json()
        panel = PANELS[key](example())
        assert [t["key"] for t in answer["tables"]] == [t.key for t in panel.tables]
        for table in panel.tables:
            csv = client.get(f"/data/skewed/{key}-{table.key}.csv", headers=HOST)
            assert csv.status_code == 200
            assert csv.mimetype == "text/csv"
            assert csv.text == table.to_csv()


def test_compare_page_sets_two_runs_side_by_side(client: FlaskClient) -> None:
    text = json.dumps(page(client, "/r/skewed/compare", "?with=bare"), ensure_ascii=False)
    assert "/r/bare/compare?with=skewed" in text
    assert "B: bare " in text
    assert text == json.dumps(page(client, "/r/skewed/compare"), ensure_ascii=False)
    assert text == json.dumps(page(client, "/r/skewed/compare", "?with=skewed"), ensure_ascii=False)
    comparison = compare(example(), bare())
    for key, make in COMPARE_PANELS.items():
        answer = client.get(f"/data/skewed~bare/{key}.json", headers=HOST).get_json()
        assert [t["values"] for t in answer["tables"]] == [
            [list(row) for row in table.rows] for table in make(comparison).tables
        ]


def test_compare_page_lists_all_runs_where_there_are_more_than_two() -> None:
    _, client = ready("skewed", "bare", "third")
    text = json.dumps(page(client, "/r/skewed/compare"), ensure_ascii=False)
    assert "All served runs" in text
    assert "/data/skewed~bare~third/runs.json" in text
    (table,) = client.get("/data/skewed~bare~third/runs.json", headers=HOST).get_json()["tables"]
    assert [row[0] for row in table["values"]] == [example().name, "bare", example().name]
    assert [row[2] for row in table["values"]] == [4, 1, 4]
    assert client.get("/data/skewed~nowhere/runs.json", headers=HOST).status_code == 404
    assert "All served runs" not in json.dumps(page(ready("skewed", "bare")[1], "/r/skewed/compare"))


def test_compare_waits_for_the_other_run_and_needs_one() -> None:
    runs, client = ready("skewed", "bare")
    other = runs.get("bare")
    other.analysis, other.status = None, Status("running", 1, 2, "rank 0")
    shown = page(client, "/r/skewed/compare")
    assert "Analysing bare" in json.dumps(shown)
    assert shown["tick"]["disabled"] is False
    assert client.get("/data/skewed~bare/times.json", headers=HOST).status_code == 409
    text = json.dumps(page(ready("skewed")[1], "/r/skewed/compare"))
    assert "Only one run is served." in text
    assert '"children": "Compare", "href"' not in text


@pytest.mark.parametrize("path", ["/data/skewed~bare/parts.json", "/data/skewed~x/times.json", "/data/~/times.json"])
def test_unknown_comparisons_are_not_found(client: FlaskClient, path: str) -> None:
    assert client.get(path, headers=HOST).status_code == 404


@pytest.mark.parametrize(
    "path", ["/data/skewed/none.json", "/data/x/parts.json", "/data/skewed/parts-x.csv", "/data/../parts.json"]
)
def test_unknown_tables_are_not_found(client: FlaskClient, path: str) -> None:
    assert client.get(path, headers=HOST).status_code == 404


def test_files_outside_the_assets_cannot_be_read(client: FlaskClient) -> None:
    for path in (
        "/assets/../server.py",
        "/assets/%2e%2e/server.py",
        "/assets//etc/passwd",
        "/data/skewed/..%2f..%2fetc.json",
    ):
        answer = client.get(path, headers=HOST)
        assert answer.status_code in (308, 400, 404) or "create_app" not in answer.text
        assert "root:" not in answer.text
        assert "def create_app" not in answer.text


def test_pages_carry_a_strict_policy_and_no_sharing_headers(client: FlaskClient) -> None:
    answer = client.get("/", headers=HOST)
    policy = answer.headers["Content-Security-Policy"]
    script = next(part for part in policy.split("; ") if part.startswith("script-src"))
    assert "unsafe" not in script
    assert "http" not in policy
    assert "default-src 'self'" in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["X-Frame-Options"] == "DENY"
    assert "Access-Control-Allow-Origin" not in answer.headers
    assert "https://" not in answer.text.replace("https:\\u002f\\u002fdash-version", "")
    assert content_policy([]).startswith("default-src 'self'; script-src 'self';")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1:9999", "127.0.0.1.evil.example:8050", ""])
def test_foreign_host_names_are_refused(client: FlaskClient, host: str) -> None:
    assert client.get("/", headers={"Host": host}).status_code == 403


@pytest.mark.parametrize("host", ["127.0.0.1:8050", "localhost:8050", "[::1]:8050", "LOCALHOST:8050"])
def test_own_names_are_accepted(client: FlaskClient, host: str) -> None:
    assert client.get("/", headers={"Host": host}).status_code == 200


def test_other_sites_can_neither_read_nor_command(client: FlaskClient) -> None:
    read = {**HOST, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}
    assert client.get("/data/skewed/parts.json", headers=read).status_code == 403
    visit = {**HOST, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert client.get("/", headers=visit).status_code == 200
    for origin in ("http://evil.example", "null"):
        assert client.post("/_dash-update-component", json={}, headers={**HOST, "Origin": origin}).status_code == 403
    own = {**HOST, "Origin": "http://127.0.0.1:8050"}
    assert client.get("/data/skewed/parts.json", headers=own).status_code == 200


def test_token_is_needed_once_it_is_set() -> None:
    _, client = ready("skewed", token="long-secret")
    assert client.get("/", headers=HOST).status_code == 401
    assert client.get("/?token=wrong", headers=HOST).status_code == 401
    assert client.get("/data/skewed/parts.json", headers=HOST).status_code == 401
    assert client.get("/assets/app.css", headers=HOST).status_code == 401
    first = client.get("/?token=long-secret", headers=HOST)
    assert first.status_code == 302
    assert first.headers["Location"] == "/"
    assert "HttpOnly" in first.headers["Set-Cookie"]
    assert "SameSite=Strict" in first.headers["Set-Cookie"]
    assert client.get("/data/skewed/parts.json", headers=HOST).status_code == 200


def test_allowed_hosts_of_other_addresses() -> None:
    assert allowed_hosts("0.0.0.0", 80) is None
    assert "192.168.1.5:8050" in allowed_hosts("192.168.1.5", 8050)
    assert "localhost" in allowed_hosts("127.0.0.1", 80)
    assert "localhost" not in allowed_hosts("127.0.0.1", 8050)


def test_hostile_names_are_json_strings_only(client: FlaskClient) -> None:
    answer = client.get("/data/skewed/sources.json", headers=HOST)
    assert answer.mimetype == "application/json"
    assert HOSTILE in json.dumps(answer.get_json(), ensure_ascii=False)
    assert HOSTILE not in client.get("/", headers=HOST).text


def test_viewers_share_one_rendering_until_the_analysis_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered, views = Rendered(), []
    tab = dataclasses.replace(TABS["load"], render=lambda view: views.append(view) or html.Div(str(len(views))))
    monkeypatch.setitem(rendered_module.TABS, "load", tab)
    first = View(example(), "skewed", "light")
    assert rendered.page("load", first) is rendered.page("load", first)
    rendered.page("load", dataclasses.replace(first, theme="dark"))
    rendered.page("load", dataclasses.replace(first, layer=3))
    assert len(views) == 3
    rendered.page("load", dataclasses.replace(first, analysis=example()))
    assert len(views) == 4


def call(**changes: object) -> dict[str, object]:
    """What a page sends to be shown, but for ``changes``."""
    names = [("url", "pathname"), ("url", "search"), ("theme", "data"), ("tick", "n_intervals")]
    outputs = [("top", "children"), ("page", "children"), ("tick", "disabled"), ("shown", "data")]
    body: dict[str, object] = {
        "output": "..top.children...page.children...tick.disabled...shown.data..",
        "outputs": [{"id": name, "property": prop} for name, prop in outputs],
        "inputs": [{"id": name, "property": prop, "value": None} for name, prop in names],
        "changedPropIds": ["url.pathname"],
    }
    return body | changes


def with_value(index: int, value: object) -> dict[str, object]:
    inputs = call()["inputs"]
    inputs[index]["value"] = value
    return call(inputs=inputs)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"null", b"[]", b"3", b'"x"', b"[" * 100_000, b"\xff", b"{}",
        *(json.dumps(call(**{key: value})).encode() for key in call() for value in (None, 3, "x", [], {}, [1], [[{}]])
          if (key, value) != ("changedPropIds", [])),
        *(json.dumps(with_value(index, value)).encode() for index in range(3) for value in (1, [], {}, [["x"]], True)),
    ],
)  # fmt: skip
def test_a_call_that_no_page_makes_is_refused(body: bytes, client: FlaskClient) -> None:
    answer = client.post("/_dash-update-component", data=body, content_type="application/json", headers=HOST)
    assert answer.status_code == 400


@pytest.mark.parametrize("number", ["²", "٣", "-1", "1e3", "9" * 30, "", "%00", "x", "①"])
def test_no_number_in_an_address_is_an_error(number: str, client: FlaskClient) -> None:
    for key in TABS:
        assert page(client, f"/r/skewed/{key}", f"?rank={number}&layer={number}&step={number}&t={number}")
