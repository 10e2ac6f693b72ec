"""A run that is still going: what counts as a change, when it is analysed anew, and what a page then gets."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from analysis_fixture import example
from flask.testing import FlaskClient
from moescope_app.runs import Runs
from moescope_app.server import create_app
from moescope_app.watch import ANALYSIS_SHARE, LEAST_S, PATIENCE_S, Watch, folder_state

HOST = {"Host": "127.0.0.1:8050"}


class World:
    """A folder's state and a clock, both set by hand."""

    def __init__(self) -> None:
        self.state = "a"
        self.now = 0.0
        self.looks = 0
        self.watch = Watch(Path("x"), self.look, lambda: self.now)

    def look(self, _path: Path) -> str:
        self.looks += 1
        return self.state

    def analyse(self, seconds: float = 0.0) -> None:
        self.watch.begin()
        self.now += seconds
        self.watch.end()
        self.now += max(LEAST_S, ANALYSIS_SHARE * seconds)

    def ask(self, after: float = LEAST_S) -> bool:
        self.now += after
        return self.watch.has_changed()


@pytest.fixture
def world() -> World:
    return World()


def test_a_change_is_told_once_it_stands_still(world: World) -> None:
    world.analyse()
    assert not world.ask()
    world.state = "half"
    assert not world.ask()
    world.state = "whole"
    assert not world.ask()
    assert world.ask()
    world.analyse()
    assert not world.ask()


def test_a_folder_that_never_stands_still_is_analysed_after_a_while(world: World) -> None:
    world.analyse()
    answers = []
    for number in range(int(PATIENCE_S / LEAST_S) + 2):
        world.state = f"state {number}"
        answers.append(world.ask())
    assert answers.index(True) == int(PATIENCE_S / LEAST_S)


def test_a_change_taken_back_is_none(world: World) -> None:
    world.analyse()
    world.state = "b"
    assert not world.ask()
    world.state = "a"
    assert not world.ask()
    assert not world.ask()


def test_what_changes_during_an_analysis_is_new(world: World) -> None:
    world.watch.begin()
    world.state = "b"
    world.watch.end()
    assert not world.ask()
    assert world.ask()


def test_looks_and_analyses_keep_their_distance(world: World) -> None:
    assert not world.ask()
    assert world.looks == 0  # nothing was analysed yet
    world.watch.begin()
    world.now += 10
    world.watch.end()
    assert not world.ask()
    looks = world.looks
    assert not world.ask(after=LEAST_S / 2)
    assert world.looks == looks
    world.state = "b"
    answers = [world.ask() for _ in range(20)]
    assert LEAST_S * (answers.index(True) + 2) == pytest.approx(ANALYSIS_SHARE * 10, abs=2 * LEAST_S)


def test_state_follows_files_but_not_moescopes_own(tmp_path: Path) -> None:
    (tmp_path / "telemetry").mkdir()
    before = folder_state(tmp_path)
    (tmp_path / ".moescope").mkdir()
    (tmp_path / ".moescope" / "analysis-1.json").write_text("{}")
    assert folder_state(tmp_path) == before
    part = tmp_path / "telemetry" / "rank0-0.parquet"
    part.write_text("a")
    first = folder_state(tmp_path)
    assert first != before
    os.utime(part, ns=(1, 1))
    assert folder_state(tmp_path) != first
    part.unlink()
    assert folder_state(tmp_path) == before
    assert folder_state(tmp_path / "nowhere") == folder_state(tmp_path / "nowhere")


class Going:
    """A run with one more step at every analysis."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, _path: Path, _show: object) -> object:
        self.count += 1
        if self.count == 1:
            raise OSError("not there yet")
        whole = example()
        return replace(whole, name=f"analysis {self.count}", telemetry=whole.telemetry[: 5 * self.count])


class NoTimeline:
    def __init__(self, *_: object) -> None:
        pass


def refresh(client: FlaskClient, shown: str | None, pathname: str = "/r/going/steps") -> dict | None:
    """Ask as an open page does every few seconds; None where nothing is new."""
    config = client.get("/_dash-dependencies", headers=HOST).get_json()
    (callback,) = [one for one in config if any(i["id"] == "live" for i in one["inputs"])]
    states = {"pathname": pathname, "search": "", "theme": "light", "shown": shown}
    outputs = [
        dict(zip(("id", "property"), o.rsplit(".", 1), strict=True)) for o in callback["output"][2:-2].split("...")
    ]
    body = {
        "output": callback["output"],
        "outputs": outputs,
        "inputs": [{"id": "live", "property": "n_intervals", "value": 1}],
        "state": [
            {
                **state,
                "value": states[
                    "theme" if state["id"] == "theme" else "shown" if state["id"] == "shown" else state["property"]
                ],
            }
            for state in callback["state"]
        ],
        "changedPropIds": ["live.n_intervals"],
    }
    answer = client.post("/_dash-update-component", json=body, headers=HOST)
    if answer.status_code == 204:
        return None
    assert answer.status_code == 200, answer.text
    return answer.get_json()["response"]


def wait_for(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_an_open_page_gets_what_is_new_and_nothing_else() -> None:
    runs = Runs([Path("/data/going")], Going(), NoTimeline)
    run, world = runs.first(), World()
    run.watch = world.watch
    client = create_app(runs).server.test_client()
    runs.ask(run)
    wait_for(lambda: run.status.state == "failed")
    assert refresh(client, run.version) is None
    for number in (2, 3):
        world.now += 100
        shown = run.version
        world.state = f"grown to {number}"
        assert refresh(client, shown) is None
        world.now += 100
        refresh(client, shown)
        wait_for(lambda: run.status.state == "done")
        fresh = refresh(client, shown)
        assert f"analysis {number}" in str(fresh)
        assert fresh["shown"]["data"] == run.version != shown
        assert refresh(client, run.version) is None
    assert refresh(client, None) is None
    assert refresh(client, "old", "/") is not None
    assert refresh(client, "", "/nowhere") is None
