"""Telemetry parts: whole or absent, whatever happens to the process or the disk."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from moescope_hooks.schema import TABLES, part_path
from moescope_hooks.writer import Gaps, TelemetryWriter, write_atomically

Rows = list[Mapping[str, Any]]


def step_row(step: int) -> Mapping[str, Any]:
    return dict.fromkeys(TABLES["step"]) | {"rank": 0, "step": step, "start_ns": 1, "end_ns": 2}


def put(writer: TelemetryWriter, step: int) -> None:
    rows: Iterable[tuple[str, Rows]] = [("step", [step_row(step)])]
    writer.put(lambda: rows)


def wait_for(condition: Any, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "the writer did not get there"
        time.sleep(0.01)


def test_a_part_holds_as_many_steps_as_asked(tmp_path: Path) -> None:
    writer = TelemetryWriter(tmp_path, 0, Gaps(0), flush_steps=2, flush_seconds=1000)
    for step in range(5):
        put(writer, step)
    writer.close()
    parts = [pl.read_parquet(part_path(tmp_path, "step", 0, part))["step"].to_list() for part in range(3)]
    assert parts == [[0, 1], [2, 3], [4]]


def test_parts_come_by_time_too(tmp_path: Path) -> None:
    writer = TelemetryWriter(tmp_path, 0, Gaps(0), flush_steps=1000, flush_seconds=0.05)
    put(writer, 0)
    wait_for(part_path(tmp_path, "step", 0, 0).exists)
    writer.close()


def test_a_resumed_run_adds_parts(tmp_path: Path) -> None:
    for _ in range(2):
        writer = TelemetryWriter(tmp_path, 0, Gaps(0))
        put(writer, 0)
        writer.close()
    assert sorted(p.name for p in (tmp_path / "step").iterdir()) == ["rank0-00000.parquet", "rank0-00001.parquet"]


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def half(path: Path) -> None:
        path.write_text("half")
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_atomically(tmp_path / "sub" / "file", half)
    assert list((tmp_path / "sub").iterdir()) == []


def test_a_path_that_vanishes_costs_rows_and_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The folder is replaced by a file for a while, as a lost mount would look."""
    telemetry, gaps = tmp_path / "telemetry", Gaps(0)
    writer = TelemetryWriter(telemetry, 0, gaps, flush_steps=1, flush_seconds=1000)
    put(writer, 0)
    wait_for(part_path(telemetry, "step", 0, 0).exists)
    shutil.rmtree(telemetry)
    telemetry.write_text("not a folder")
    put(writer, 1)
    wait_for(lambda: len(gaps) > 0)
    telemetry.unlink()
    put(writer, 2)
    writer.close()
    noted = json.loads((telemetry / "rank0-gaps.json").read_text())
    assert noted[0]["what"] == "step of steps 1 to 1"
    assert pl.read_parquet(telemetry / "step" / "rank0-00001.parquet")["step"].to_list() == [2]
    assert len(caplog.records) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_costs_rows_and_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    original, full = pl.DataFrame.write_parquet, {"now": True}

    def write(frame: pl.DataFrame, path: Path, **options: Any) -> None:
        original(frame, "/dev/full" if full["now"] else path, **options)

    monkeypatch.setattr(pl.DataFrame, "write_parquet", write)
    gaps = Gaps(0)
    writer = TelemetryWriter(tmp_path, 0, gaps, flush_steps=1, flush_seconds=1000)
    put(writer, 0)
    wait_for(lambda: len(gaps) > 0)
    full["now"] = False
    put(writer, 1)
    writer.close()
    noted = json.loads((tmp_path / "rank0-gaps.json").read_text())
    assert "os error 28" in noted[0]["reason"].lower()
    assert pl.read_parquet(part_path(tmp_path, "step", 0, 0))["step"].to_list() == [1]
    assert len(caplog.records) == 1


def test_rows_that_cannot_be_made_do_not_stop_the_writer(tmp_path: Path) -> None:
    def broken() -> Iterable[tuple[str, Rows]]:
        raise RuntimeError("device lost")

    gaps = Gaps(0)
    writer = TelemetryWriter(tmp_path, 0, gaps)
    writer.put(broken)
    put(writer, 1)
    writer.close()
    assert len(gaps) == 1
    assert pl.read_parquet(part_path(tmp_path, "step", 0, 0))["step"].to_list() == [1]


KILLED = """
import sys, time
from pathlib import Path
sys.path.insert(0, {folder!r})
from test_hooks_writer import put
from moescope_hooks.writer import Gaps, TelemetryWriter
writer = TelemetryWriter(Path({out!r}), 0, Gaps(0), flush_steps=1, flush_seconds=1000)
for step in range(10**9):
    put(writer, step)
    time.sleep(0.001)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_killed_process_leaves_whole_parts(tmp_path: Path) -> None:
    script = KILLED.format(folder=str(Path(__file__).parent), out=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", script])
    wait_for(part_path(tmp_path, "step", 0, 20).exists, 60)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    parts = sorted((tmp_path / "step").glob("rank*.parquet"))
    steps = [step for path in parts for step in pl.read_parquet(path)["step"].to_list()]
    assert len(parts) >= 20
    assert steps == list(range(len(steps)))
