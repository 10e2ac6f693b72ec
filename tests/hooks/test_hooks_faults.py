"""Faults in every entry point of the hooks: the loop goes on, its losses are the same, and the loss is noted."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import polars as pl
import pytest
import torch
from moescope_hooks import Schedule, collective, observe, traced
from moescope_hooks.ranges import phase_range, start_collective
from torch import Tensor, nn
from toy_moe import ToyModel, train_toy

from moescope.telemetry import open_telemetry

FAULTS = [
    "moescope_hooks.observation.TelemetryWriter",
    "moescope_hooks.observation.attach",
    "moescope_hooks.observation.describe_run",
    "moescope_hooks.observation.write_run",
    "moescope_hooks.observation.TraceWindows",
    "moescope_hooks.observation.router_figures",
    "moescope_hooks.sizes.Sizes.now",
    "moescope_hooks.steprecord.StepRecord.add_load",
    "moescope_hooks.steprecord.StepRecord.num_loads",
    "moescope_hooks.steprecord.StepRecord.add_collective",
    "moescope_hooks.steprecord.StepRecord.seal",
    "moescope_hooks.steprecord.load_blocks",
    "moescope_hooks.steprecord.collective_block",
    "moescope_hooks.steprecord.fetch_later",
    "moescope_hooks.stamps.HostStamps.stamp",
    "moescope_hooks.stamps.HostStamps.end_step",
    "moescope_hooks.windows.TraceWindows.begin_step",
    "moescope_hooks.windows.TraceWindows.end_step",
    "moescope_hooks.windows.TraceWindows.close",
    "moescope_hooks.windows.TraceWindows._make",
    "moescope_hooks.windows.profile.start_trace",
    "moescope_hooks.windows.profile.add_metadata_json",
    "moescope_hooks.windows.Triggers",
    "moescope_hooks.triggers.Triggers.window_at",
    "moescope_hooks.triggers.Triggers._look",
    "moescope_hooks.triggers.Triggers.close",
    "moescope_hooks.windows._compress",
    "moescope_hooks.windows.shutil.disk_usage",
    "moescope_hooks.ranges.enter",
    "moescope_hooks.ranges._Marker.apply",
    "moescope_hooks.ranges.partial",
    "moescope_hooks.ranges.Tensor.register_hook",
    "moescope_hooks.writer.TelemetryWriter.put",
    "moescope_hooks.writer.TelemetryWriter.close",
    "moescope_hooks.writer.write_atomically",
    "moescope_hooks.writer.pl.DataFrame",
]
"""What is made to raise, one at a time."""


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Several would fight for the cores with other tests."""
    torch.set_num_threads(1)


class Regions(nn.Module):
    """A toy whose passes go through every kind of range and collective."""

    def __init__(self) -> None:
        super().__init__()
        self.toy = ToyModel()

    def forward(self, x: Tensor) -> Tensor:
        """The loss."""
        with collective("dispatch", layer=0, group="ep", send_bytes=[8], recv_bytes=[8]), phase_range("head"):
            x = traced("experts", 0, lambda t: t * 2, x)
            x = sum(traced("shared", 0, lambda *both: both, x, 2 * x))
        start_collective("grad_reduce", group="dp", send_bytes=[8], recv_bytes=[8])()
        loss: Tensor = traced("attention", 1, self.toy, x)
        return loss


def plain_losses() -> list[float]:
    return train_toy(Regions(), None)  # type: ignore[arg-type]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_inside_costs_telemetry_never_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    def fail(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("injected")

    expected = plain_losses()
    model = Regions()
    schedule = Schedule(start=1, steps=1, on_signal=signal.SIGUSR2)
    handler = signal.getsignal(signal.SIGUSR2)
    monkeypatch.setattr(fault, fail)
    with observe(model, out=tmp_path, profile=schedule, flush_steps=1) as obs:
        losses = train_toy(model, obs)  # type: ignore[arg-type]
    monkeypatch.undo()
    signal.signal(signal.SIGUSR2, handler)
    assert losses == expected


def test_a_fault_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("injected")

    model = Regions()
    with observe(model, out=tmp_path, profile=Schedule(start=0, steps=1)) as obs:
        monkeypatch.setattr("moescope_hooks.ranges.enter", fail)
        train_toy(model, obs, steps=1)  # type: ignore[arg-type]
        monkeypatch.undo()
    telemetry = open_telemetry(tmp_path)
    assert telemetry is not None
    assert any("a range" in problem and "injected" in problem for problem in telemetry.problems)
    assert telemetry.step.height == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], check=False, capture_output=True
    )
    if made.returncode:
        pytest.skip("no right to mount a file system")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill_up(ballast: Path) -> None:
    """Take all the room there is."""
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


def test_a_full_disk_costs_what_does_not_fit(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = ToyModel()
    ballast = small_disk / "ballast"
    with observe(model, out=small_disk / "run", flush_steps=1, flush_seconds=1e6) as obs:
        losses = train_toy(model, obs, steps=1)
        wait_for((small_disk / "run/telemetry/step/rank0-00000.parquet").exists)
        fill_up(ballast)
        losses += train_toy(model, obs, steps=2)
        wait_for(lambda: len(obs.gaps) > 0)
        time.sleep(0.1)
        ballast.unlink()
        train_toy(model, obs, steps=1)
    telemetry = open_telemetry(small_disk / "run")
    assert telemetry is not None
    assert telemetry.step["step"].to_list()[0] == 0
    assert telemetry.step["step"].to_list()[-1] == 3
    assert any("os error 28" in problem.lower() for problem in telemetry.problems)
    assert sum(record.levelname == "WARNING" for record in caplog.records) == 1
    assert len(losses) == 3


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
def test_a_rank_that_is_stopped_while_it_leaves_keeps_its_telemetry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: type[BaseException]
) -> None:
    """Ctrl-C reaches a rank twice, by itself and by its launcher; a rank that lost a peer is stopped as it leaves."""
    original, interrupted = pl.DataFrame.write_parquet, threading.Event()

    def write(frame: pl.DataFrame, *arguments: Any, **options: Any) -> None:
        if not interrupted.is_set():
            interrupted.set()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(0.3)
            raise KeyboardInterrupt  # as polars does, in whichever thread it works for
        original(frame, *arguments, **options)

    monkeypatch.setattr(pl.DataFrame, "write_parquet", write)

    def end_badly() -> None:
        model = ToyModel()
        with observe(model, out=tmp_path, flush_seconds=1e6) as obs:
            train_toy(model, obs, steps=3)
            raise stop("the run ends here")

    with pytest.raises(KeyboardInterrupt):
        end_badly()
    assert interrupted.is_set()
    telemetry = open_telemetry(tmp_path)
    assert telemetry is not None
    assert telemetry.step["step"].to_list() == [0, 1, 2]


def test_a_flush_writes_what_has_ended(tmp_path: Path) -> None:
    model = ToyModel()
    with observe(model, out=tmp_path, flush_steps=1000, flush_seconds=1e6) as obs:
        train_toy(model, obs, steps=2)
        obs.flush()
        wait_for((tmp_path / "telemetry/step/rank0-00000.parquet").exists)
        train_toy(model, obs, steps=1)
        steps = pl.read_parquet(tmp_path / "telemetry/step/rank0-00000.parquet")["step"].to_list()
    assert steps == [0, 1]


def wait_for(condition: Any, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.01)


def test_a_folder_that_vanishes_costs_what_was_in_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = ToyModel()
    out = tmp_path / "run"
    expected = train_toy(ToyModel(), None, steps=3)
    with observe(model, out=out, flush_steps=1, profile=Schedule(start=0, steps=1)) as obs:
        losses = train_toy(model, obs, steps=1)
        wait_for((out / "telemetry/step/rank0-00000.parquet").exists)
        shutil.rmtree(out, ignore_errors=True)
        train_toy(model, obs, steps=2)
    assert losses == expected[:1]
    telemetry = open_telemetry(out)
    assert telemetry is not None
    assert telemetry.step["step"].to_list() == [1, 2]
    assert sum(record.levelname == "WARNING" for record in caplog.records) <= 1


KILLED = """
import sys
sys.path.insert(0, {tests!r})
import torch
from moescope_hooks import observe
from toy_moe import ToyModel, train_toy
torch.set_num_threads(1)
model = ToyModel()
with observe(model, out={out!r}, flush_steps=5, flush_seconds=1e6) as obs:
    train_toy(model, obs, steps=10**9)
"""


def test_a_killed_training_leaves_all_steps_up_to_the_last_flush(tmp_path: Path) -> None:
    script = KILLED.format(tests=str(Path(__file__).parents[1]), out=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", script])
    wait_for((tmp_path / "telemetry/step/rank0-00003.parquet").exists, 90)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    telemetry = open_telemetry(tmp_path)
    assert telemetry is not None
    steps = telemetry.step["step"].to_list()
    assert len(steps) >= 20
    assert len(steps) % 5 == 0
    assert steps == list(range(len(steps)))
    counts = telemetry.expert_load.filter(pl.col("step") < steps[-1] - 4)
    assert counts["step"].unique().to_list() == list(range(steps[-1] - 4))
    assert telemetry.run["basis"] == "measured"


def test_the_gaps_are_written_when_the_disk_has_room_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from moescope_hooks import writer  # noqa: PLC0415 - patched by name

    full = threading.Event()
    full.set()
    original = writer.write_atomically

    def write(path: Path, fill: Any) -> None:
        if full.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        original(path, fill)

    monkeypatch.setattr(writer, "write_atomically", write)
    model = ToyModel()
    with observe(model, out=tmp_path, flush_steps=1) as obs:
        train_toy(model, obs, steps=1)
        wait_for(lambda: len(obs.gaps) > 0)
        full.clear()
        train_toy(model, obs, steps=1)
    gaps = json.loads((tmp_path / "telemetry" / "rank0-gaps.json").read_text())
    assert any("No space left" in gap["reason"] for gap in gaps)
