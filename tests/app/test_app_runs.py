"""Analyses in the background: progress, cancelling, failing, trying again."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from analysis_fixture import bare
from moescope_app.runs import Runs

from moescope.errors import MoescopeError


class NoTimeline:
    """Stands for a timeline that nobody looks at."""

    def __init__(self, *_: object) -> None:
        pass


def wait_for(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Steps:
    """An analysis that goes on when told to."""

    def __init__(self) -> None:
        self.shown = threading.Event()
        self.go_on = threading.Event()
        self.calls: list[str] = []

    def __call__(self, path: Path, show) -> object:
        self.calls.append(path.name)
        show(1, 4, "rank 0")
        self.shown.set()
        assert self.go_on.wait(10)
        show(2, 4, "rank 1")
        return bare()


def test_slugs_are_unique_and_safe() -> None:
    runs = Runs([Path("/a/run"), Path("/b/run"), Path("/c/Ünsafe <x>"), Path("/")], lambda *_: bare(), NoTimeline)
    assert [run.slug for run in runs] == ["run", "run-2", "nsafe-x", "run-3"]
    assert runs.get("run-2").path == Path("/b/run")
    assert runs.get("../etc") is None


def test_analysis_starts_when_asked_and_shows_progress() -> None:
    steps = Steps()
    runs = Runs([Path("/a/one"), Path("/a/two")], steps, NoTimeline)
    one, two = runs
    assert steps.calls == []
    runs.ask(one)
    assert steps.shown.wait(10)
    assert (one.status.state, one.status.done, one.status.total, one.status.label) == ("running", 1, 4, "rank 0")
    assert runs.ask(two).state == "waiting"
    steps.go_on.set()
    wait_for(lambda: one.status.state == "done" and two.status.state == "done")
    assert one.analysis == bare()
    wait_for(lambda: isinstance(one.timeline, NoTimeline))  # opened ahead, though nobody asked
    assert steps.calls == ["one", "two"]


def test_cancelling_stops_the_running_and_drops_the_queued() -> None:
    steps = Steps()
    runs = Runs([Path("/a/one"), Path("/a/two")], steps, NoTimeline)
    one, two = runs
    runs.ask(one)
    runs.ask(two)
    assert steps.shown.wait(10)
    runs.cancel(two)
    runs.cancel(one)
    steps.go_on.set()
    wait_for(lambda: one.status.state == "cancelled")
    assert two.status.state == "cancelled"
    assert steps.calls == ["one"]
    runs.again(two)
    wait_for(lambda: two.status.state == "done")


def test_a_defect_fails_one_run_and_not_the_next() -> None:
    def broken(path: Path, _show) -> object:
        if path.name == "one":
            raise ZeroDivisionError("by nothing")
        return bare()

    runs = Runs([Path("/a/one"), Path("/a/two")], broken, NoTimeline)
    one, two = runs
    runs.ask(one)
    runs.ask(two)
    wait_for(lambda: two.status.state == "done")
    assert one.status.state == "failed"
    assert one.status.message == "ZeroDivisionError: by nothing"


def test_an_interrupt_that_reaches_the_analysis_leaves_its_thread_alive(tmp_path: Path) -> None:
    def interrupted(path: Path, _show: object) -> object:
        raise KeyboardInterrupt if path.name == "a" else MoescopeError("read")

    runs = Runs([tmp_path / "a", tmp_path / "b"], interrupted, lambda *_: None)
    for run, state in zip(runs, ("cancelled", "failed"), strict=True):
        runs.ask(run)
        deadline = time.monotonic() + 60
        while run.status.pending:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert run.status.state == state
