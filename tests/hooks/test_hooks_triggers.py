"""Windows on demand: asked for by a signal or a file, on steps that all ranks agree on."""

from __future__ import annotations

import gzip
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import rank_jobs
import torch
import torch.distributed as dist
from moescope_hooks import Schedule, observe
from moescope_hooks.schedule import Window
from moescope_hooks.triggers import Triggers
from moescope_hooks.writer import Gaps
from rank_pool import RankPool
from toy_moe import ToyModel, train_toy

POLL = 0.005


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Several would fight for the cores with other tests."""
    torch.set_num_threads(1)


@pytest.fixture
def handler() -> Iterator[list[int]]:
    """The trainer's own handler of SIGUSR2: what it was called with."""
    calls: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, _frame: calls.append(number))
    yield calls
    signal.signal(signal.SIGUSR2, before)


def step_until(triggers: Triggers, found: Callable[[Window | None], bool], first: int = 0) -> tuple[int, Window | None]:
    """Step on every few milliseconds until what the steps see is as asked."""
    for step in range(first, first + 2000):
        window = triggers.window_at(step)
        if found(window):
            return step, window
        time.sleep(0.002)
    pytest.fail("it did not come")


def test_a_signal_asks_for_a_window_and_the_handler_before_is_called(handler: list[int]) -> None:
    mine = signal.getsignal(signal.SIGUSR2)
    triggers = Triggers(
        Schedule(start=None, steps=3, on_signal=signal.SIGUSR2), 0, Gaps(0), first_number=4, poll_seconds=POLL
    )
    try:
        triggers.window_at(0)
        os.kill(os.getpid(), signal.SIGUSR2)
        step, window = step_until(triggers, lambda w: w is not None, 1)
        assert window == Window(4, step, 3)
        end, _ = step_until(triggers, lambda w: w is None, step)
        assert end == step + 3
        os.kill(os.getpid(), signal.SIGUSR2)
        _, second = step_until(triggers, lambda w: w is not None, end)
        assert second is not None
        assert second.number == 5
    finally:
        triggers.close()
    assert handler == [signal.SIGUSR2] * 2
    assert signal.getsignal(signal.SIGUSR2) is mine


def test_a_handler_installed_later_is_left_alone(handler: list[int]) -> None:
    triggers = Triggers(Schedule(start=None, on_signal=signal.SIGUSR2), 0, Gaps(0), poll_seconds=POLL)
    later = signal.default_int_handler
    signal.signal(signal.SIGUSR2, later)
    triggers.close()
    assert signal.getsignal(signal.SIGUSR2) is later
    assert handler == []


def test_a_signal_cannot_be_taken_off_the_main_thread_and_that_is_said() -> None:
    gaps = Gaps(0)
    made: list[Triggers] = []

    def make() -> None:
        made.append(Triggers(Schedule(start=None, on_signal=signal.SIGUSR2), 0, gaps, poll_seconds=POLL))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    made[0].close()
    assert len(gaps) == 1
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL


def test_a_file_asks_when_it_appears_and_when_it_is_touched(tmp_path: Path) -> None:
    file = tmp_path / "profile"
    triggers = Triggers(Schedule(start=None, steps=2, on_file=file), 0, Gaps(0), poll_seconds=POLL)
    try:
        step, _ = step_until(triggers, lambda _: True)
        file.write_text("")
        step, window = step_until(triggers, lambda w: w is not None, step + 1)
        assert window == Window(0, step, 2)
        step, _ = step_until(triggers, lambda w: w is None, step)
        os.utime(file, ns=(1, 1))
        _, again = step_until(triggers, lambda w: w is not None, step)
        assert again is not None
        assert again.number == 1
    finally:
        triggers.close()


def test_a_file_that_was_there_before_does_not_ask(tmp_path: Path) -> None:
    file = tmp_path / "profile"
    file.write_text("")
    triggers = Triggers(Schedule(start=None, on_file=file), 0, Gaps(0), poll_seconds=POLL)
    for step in range(20):
        assert triggers.window_at(step) is None
        time.sleep(POLL)
    triggers.close()


@pytest.mark.parametrize(
    ("text", "steps", "ranks", "gaps"),
    [
        ('{"steps": 4, "ranks": [0]}', 4, (0,), 0),
        ('{"steps": 4000}', 50, None, 0),
        ("{", 2, None, 1),
        ("[]", 2, None, 1),
        ('{"steps": 0}', 2, None, 1),
    ],
)
def test_a_file_may_say_steps_and_ranks(
    tmp_path: Path, text: str, steps: int, ranks: tuple[int, ...] | None, gaps: int
) -> None:
    file, noted = tmp_path / "profile", Gaps(0)
    triggers = Triggers(Schedule(start=None, steps=2, on_file=file), 0, noted, poll_seconds=POLL)
    try:
        triggers.window_at(0)
        beside = tmp_path / "beside"
        beside.write_text(text)
        beside.rename(file)
        _, window = step_until(triggers, lambda w: w is not None, 1)
        assert window is not None
        assert (window.steps, window.ranks) == (steps, ranks)
        assert len(noted) == gaps
    finally:
        triggers.close()


def test_ranks_agree_on_the_steps_of_one_window() -> None:
    """Both ranks are asked, at different steps; one window comes of it."""
    store = dist.HashStore()
    schedule = Schedule(start=None, steps=2, on_signal=signal.SIGUSR2)
    ranks = [Triggers(schedule, rank, Gaps(rank), store=store, poll_seconds=POLL) for rank in range(2)]
    ranks[1]._key = ranks[0]._key  # in a job, each is the first of its process
    seen: list[list[int]] = [[], []]
    try:
        for step in range(400):
            for rank, triggers in enumerate(ranks):
                if triggers.window_at(step) is not None:
                    seen[rank].append(step)
            if step == 3:
                ranks[0]._asked = True
            if step == 5:
                ranks[1]._asked = True
            time.sleep(0.002)
    finally:
        for triggers in reversed(ranks):
            triggers.close()
    assert seen[0] == seen[1]
    assert len(seen[0]) == 2


def read_trace(path: Path) -> dict[str, Any]:
    with gzip.open(path) as file:
        trace: dict[str, Any] = json.load(file)
    return trace


def test_a_running_job_is_profiled_without_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moescope_hooks.triggers.POLL_SECONDS", POLL)
    model = ToyModel()
    with observe(model, out=tmp_path, profile=Schedule(start=0, steps=1, on_signal=signal.SIGUSR2)) as obs:
        train_toy(model, obs, steps=2)
        os.kill(os.getpid(), signal.SIGUSR2)
        until = time.monotonic() + 60
        while not (tmp_path / "traces" / "rank0-w1.json.gz").exists() and time.monotonic() < until:
            train_toy(model, obs, steps=1)
            time.sleep(0.002)
    trace = read_trace(tmp_path / "traces" / "rank0-w1.json.gz")
    assert trace["moescope"]["window"] == 1
    assert len(trace["moescope"]["steps"]) == 1
    assert read_trace(tmp_path / "traces" / "rank0.json.gz")["moescope"]["steps"] == [0]


def test_all_ranks_of_a_job_record_the_steps_that_one_was_asked_for(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(rank_jobs.observe_on_demand, tmp_path, 2)
    steps = [
        read_trace(tmp_path / "traces" / f"rank{rank}.json.gz")["moescope"]["steps"]
        for rank in range(4)
        if (tmp_path / "traces" / f"rank{rank}.json.gz").exists()
    ]
    assert len(steps) == 2  # the file asked for ranks 1 and 2 only
    assert steps[0] == steps[1]
    assert len(steps[0]) == 2


def test_a_window_ends_after_its_time(tmp_path: Path) -> None:
    model = ToyModel()
    with observe(model, out=tmp_path, profile=Schedule(start=0, steps=20, max_seconds=1e-9)) as obs:
        train_toy(model, obs, steps=4)
    assert read_trace(tmp_path / "traces" / "rank0.json.gz")["moescope"]["steps"] == [0]
    gaps = json.loads((tmp_path / "telemetry" / "rank0-gaps.json").read_text())
    assert gaps[0]["what"] == "steps of window 0 from 1 on"


def test_a_window_is_no_longer_than_what_fits(tmp_path: Path) -> None:
    model = ToyModel()
    with observe(model, out=tmp_path, profile=Schedule(start=0, steps=20, max_bytes=1)) as obs:
        train_toy(model, obs, steps=4)
    assert read_trace(tmp_path / "traces" / "rank0.json.gz")["moescope"]["steps"] == [0]
    gaps = json.loads((tmp_path / "telemetry" / "rank0-gaps.json").read_text())
    assert gaps[0]["reason"] == "above Schedule.max_bytes"


def test_a_window_that_would_fill_the_disk_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _path: type("Usage", (), {"free": 10})())
    model = ToyModel()
    with observe(model, out=tmp_path, profile=Schedule(start=0, steps=2)) as obs:
        train_toy(model, obs, steps=3)
    assert not (tmp_path / "traces").exists()
    gaps = json.loads((tmp_path / "telemetry" / "rank0-gaps.json").read_text())
    assert "10 are free" in gaps[0]["reason"]


def test_a_window_is_announced_with_its_size(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="moescope")
    model = ToyModel()
    with observe(model, out=tmp_path, profile=Schedule(start=1, steps=2)) as obs:
        train_toy(model, obs, steps=3)
    assert "window 0 records steps 1 to 2, about" in caplog.text
