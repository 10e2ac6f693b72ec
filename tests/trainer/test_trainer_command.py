"""``moescope train`` from outside: runs, refusals, interrupts and dead ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from moescope.telemetry import open_telemetry
from moescope.trainer.checkpoint import checkpoints_in

MINI = """
preset = "tiny"
[model]
num_layers = 2
dim = 32
num_heads = 2
dense_hidden_dim = 32
[moe]
num_experts = 4
expert_hidden_dim = 32
[train]
steps = 3
sequence_length = 32
microbatch_sequences = 2
global_batch_sequences = 8
eval_sequences = 2
[data]
max_domain_bytes = 20000
"""


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    path = tmp_path / "mini.toml"
    path.write_text(MINI)
    return path


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "moescope", "train", *arguments]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(*arguments: str, cwd: Path) -> tuple[int, str, str]:
    process = start(*arguments, cwd=cwd)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def test_a_run_of_two_ranks_leaves_a_run_directory(toml: Path, tmp_path: Path) -> None:
    code, out, err = run("--config", str(toml), "--ranks", "2", "--profile", "--name", "first", cwd=tmp_path)
    assert code == 0, err
    assert out.splitlines() == ["Wrote runs/first", "Next: moescope analyze runs/first"]
    assert "num_experts = 4" in err
    assert "tokens/s" in err
    assert "validation loss" in err
    assert "Traceback" not in err
    directory = tmp_path / "runs" / "first"
    assert sorted(p.name for p in (directory / "traces").iterdir()) == ["rank0.json.gz", "rank1.json.gz"]
    telemetry = open_telemetry(directory)
    assert telemetry is not None
    assert telemetry.problems == []
    assert telemetry.step.height == 6
    assert telemetry.run["parallel"]["world_size"] == 2
    assert telemetry.run["command"][:2] == ["moescope", "train"]
    assert telemetry.clock.select("peer", "when").rows() == [(1, "start"), (1, "end")]
    code, _, err = run("--config", str(toml), "--name", "first", cwd=tmp_path)
    assert (code, "exists already" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--ranks", "3"], 2, "must be a multiple of parallel.ep_size = 3"),
        (["--set", "moe.top_k=17"], 2, "moe.top_k = 17: must lie between 1 and"),
        (["--preset", "huge"], 2, "must be one of tiny, small, gpu\n  choose it with --preset NAME"),
        (["--set", "moe.topk=1"], 2, "did you mean top_k?"),
        (["--set", "model_.dim=1"], 2, "did you mean model?"),
        (["--set", "moe.zzz=1"], 2, "docs/train.md lists the settings"),
        (["--set", "parallel.placement_from=absent"], 4, "absent holds no expert counts to place experts by"),
        (["--resume"], 2, "--resume needs --name or --out"),
        (["--data", "absent/*.txt"], 4, "--data absent/*.txt: no file matches"),
        (["--router-bias", "nan"], 2, "must be a finite number"),
        (["--resume", "--name", "absent"], 3, "cannot read the configuration"),
    ],
)
def test_what_cannot_run_is_refused_at_once(tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    exit_code, out, err = run(*arguments, cwd=tmp_path)
    assert (exit_code, out) == (code, "")
    assert message in err
    assert "Traceback" not in err


@pytest.fixture
def endless(toml: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A run that does not end by itself, once it has trained and saved some steps."""
    out = tmp_path / "endless"
    settings = ["--set", "checkpoint.every=5", "--set", "train.log_every=1000"]
    process = start(
        "--config", str(toml), "--ranks", "2", "--steps", "1000000", *settings, "--out", str(out), cwd=tmp_path
    )
    try:
        until = time.monotonic() + 90
        while not checkpoints_in(out):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until, "no checkpoint in time"
            time.sleep(0.05)
        yield process, out
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_a_killed_rank_ends_the_run_and_is_named_and_the_run_resumes(
    endless: tuple[subprocess.Popen[str], Path], tmp_path: Path
) -> None:
    process, out = endless
    os.kill(json.loads((out / "run.json").read_text())["devices"][1]["pid"], signal.SIGKILL)
    killed = time.monotonic()
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - killed < 30
    assert process.returncode == 1
    assert "rank 1 failed" in err
    assert "Traceback" not in err
    telemetry = open_telemetry(out)
    assert telemetry is not None
    assert telemetry.step.filter(telemetry.step["rank"] == 0).height > 0
    last = int(checkpoints_in(out)[-1].name.removeprefix("step-"))
    code, _, err = run("--resume", "--out", str(out), "--ranks", "2", "--steps", str(last + 2), cwd=tmp_path)
    assert code == 0, err
    telemetry = open_telemetry(out)
    assert telemetry is not None
    assert telemetry.run["restarts"][0]["step"] == last
    steps = telemetry.step.filter(telemetry.step["rank"] == 0)["step"].to_list()
    assert steps[-2:] == [last, last + 1]
    assert len(steps) == len(set(steps))


def test_an_interrupt_ends_every_rank_and_keeps_what_was_recorded(endless: tuple[subprocess.Popen[str], Path]) -> None:
    process, out = endless
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    telemetry = open_telemetry(out)
    assert telemetry is not None
    assert telemetry.step.height > 0
    for device in telemetry.run["devices"]:
        with pytest.raises(ProcessLookupError):
            os.kill(device["pid"], 0)
