"""What goes wrong on purpose, and what goes wrong by itself: neither changes what is learned or what was saved."""

from __future__ import annotations

import resource
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from miniature import alone, losses_of, mini_config, mini_trainer

from moescope.telemetry import open_telemetry
from moescope.trainer.checkpoint import checkpoints_in, latest_checkpoint
from moescope.trainer.faults import Faults
from moescope.trainer.loop import Job, train
from moescope.trainer.settings.control import ControlConfig

TEXT = "wave salt tide foam gull " * 400


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the training thread was asked to wait, one entry per wait."""
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    return waited


def test_late_data_holds_a_step_up_once_and_the_host_every_microbatch(sleeps: list[float]) -> None:
    """16 sequences in microbatches of 2: 8 microbatches."""
    plain = losses_of(mini_trainer(mini_config(), alone()), 2)
    late = mini_config(control={"data_stall_rank": 0, "data_stall_ms": 70})
    assert losses_of(mini_trainer(late, alone()), 2) == plain
    assert sleeps == [0.07, 0.07]
    sleeps.clear()
    held_up = mini_config(control={"host_stall_rank": 0, "host_stall_ms": 5})
    assert losses_of(mini_trainer(held_up, alone()), 2) == plain
    assert sleeps == [0.005] * 16


def test_memory_is_taken_from_the_rank_that_is_named(sleeps: list[float]) -> None:
    control = ControlConfig(memory_rank=1, memory_mib=3, data_stall_rank=1, host_stall_rank=1)
    cpu = torch.device("cpu")
    named, other = Faults(control, 1, cpu), Faults(control, 0, cpu)
    assert named.ballast is not None
    assert named.ballast.untyped_storage().nbytes() == 3 * 2**20
    assert other.ballast is None
    other.stall_data()
    other.stall_host()
    assert sleeps == []
    trainer = mini_trainer(mini_config(control={"memory_rank": 0, "memory_mib": 3}), alone())
    assert trainer.model.faults.ballast is not None
    assert control.active()[-1] == "memory-pressure: 3 MiB on rank 1"


@contextmanager
def room_for_files_of(num_bytes: int) -> Iterator[None]:
    """Let this process write no longer files: what a full disk does to a large one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def job(tmp_path: Path) -> Job:
    (tmp_path / "sea.txt").write_text(TEXT)
    config = mini_config(
        data={"files": [str(tmp_path / "sea.txt")]}, train={"steps": 6, "eval_every": 3}, checkpoint={"every": 1}
    )
    return Job(config, tmp_path / "run", ("moescope", "train"))


def test_a_full_disk_costs_checkpoints_and_nothing_else(tmp_path: Path) -> None:
    lines: list[str] = []
    limits = [room_for_files_of(40_000)]

    def say(line: str) -> None:
        lines.append(line)
        if line.startswith("Wrote") and len(checkpoints_in(tmp_path / "run")) == 2:
            limits[0].__enter__()

    try:
        run = train(job(tmp_path), alone(), say)
    finally:
        limits[0].__exit__(None, None, None)
    assert sum(line.startswith("No checkpoint, training goes on: ") for line in lines) == 4
    assert run["result"]["validation_loss"] > 0
    out = tmp_path / "run"
    assert [path.name for path in sorted((out / "checkpoints").iterdir())] == ["step-00000001", "step-00000002"]
    assert latest_checkpoint(out).name == "step-00000002"
    resumed = train(Job(job(tmp_path).config, out, (), resume=True), alone(), lines.append)
    assert resumed["restarts"][0]["step"] == 2
    assert resumed["result"]["restarts"] == 1
    assert resumed["result"]["validation_loss"] == run["result"]["validation_loss"]
    assert resumed["result"]["device_hours"] > run["result"]["device_hours"]


def test_a_run_directory_that_vanishes_comes_back(tmp_path: Path) -> None:
    out = tmp_path / "run"

    def say(line: str) -> None:
        if line.startswith("step    3/"):
            shutil.rmtree(out)

    run = train(job(tmp_path), alone(), say)
    assert [path.name for path in checkpoints_in(out)] == ["step-00000005", "step-00000006"]
    telemetry = open_telemetry(out)
    assert telemetry is not None
    assert telemetry.run["result"] == run["result"]
    assert telemetry.step["step"].max() == 5
