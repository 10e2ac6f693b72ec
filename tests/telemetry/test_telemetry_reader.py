"""Reading telemetry: as much as can be read, and every loss said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from moescope_hooks.schema import TABLES, part_path

from moescope.telemetry import Telemetry, open_telemetry


def write_part(root: Path, table: str, part: int, rows: list[dict[str, Any]], rank: int = 0) -> Path:
    path = part_path(root / "telemetry", table, rank, part)
    path.parent.mkdir(parents=True, exist_ok=True)
    full = [dict.fromkeys(TABLES[table]) | {"rank": rank} | row for row in rows]
    pl.DataFrame(full, schema=dict(TABLES[table]), orient="row").write_parquet(path)
    return path


def read(root: Path) -> Telemetry:
    telemetry = open_telemetry(root)
    assert telemetry is not None
    return telemetry


def test_a_folder_without_telemetry_is_none(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    assert open_telemetry(tmp_path) is None


def test_tables_are_empty_with_their_columns_where_absent(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"schema": "moescope.run/1"}')
    telemetry = read(tmp_path)
    assert telemetry.run == {"schema": "moescope.run/1"}
    assert telemetry.problems == []
    for table, columns in TABLES.items():
        frame = getattr(telemetry, table)
        assert frame.height == 0
        assert dict(frame.schema) == dict(columns)


def test_parts_of_all_ranks_come_in_the_order_of_the_steps(tmp_path: Path) -> None:
    write_part(tmp_path, "step", 0, [{"step": 0}, {"step": 1}], rank=10)
    write_part(tmp_path, "step", 1, [{"step": 2}], rank=10)
    write_part(tmp_path, "step", 0, [{"step": 0}], rank=2)
    assert read(tmp_path).step.select("step", "rank").rows() == [(0, 2), (0, 10), (1, 10), (2, 10)]


def test_steps_trained_again_after_a_restart_count_once(tmp_path: Path) -> None:
    """A run was killed at step 3 and resumed from step 2; another rank had flushed less."""
    write_part(tmp_path, "step", 0, [{"step": s, "loss": 1.0} for s in range(4)])
    write_part(tmp_path, "step", 1, [{"step": s, "loss": 2.0} for s in range(2, 5)])
    write_part(tmp_path, "step", 0, [{"step": s, "loss": 1.0} for s in range(2)], rank=1)
    rows = read(tmp_path).step.filter(pl.col("rank") == 0).select("step", "loss").rows()
    assert rows == [(0, 1.0), (1, 1.0), (2, 2.0), (3, 2.0), (4, 2.0)]
    assert read(tmp_path).step.filter(pl.col("rank") == 1).height == 2


@pytest.mark.parametrize("damage", ["cut", "empty", "other"])
def test_a_damaged_part_is_said_and_the_others_are_read(tmp_path: Path, damage: str) -> None:
    whole = write_part(tmp_path, "step", 0, [{"step": 0}])
    broken = write_part(tmp_path, "step", 1, [{"step": 1}])
    content = broken.read_bytes()
    broken.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "other": b"not parquet at all"}[damage])
    telemetry = read(tmp_path)
    assert telemetry.step["step"].to_list() == [0]
    assert [p for p in telemetry.problems if broken.name in p and "cannot be read" in p]
    assert not [p for p in telemetry.problems if whole.name in p]


def test_other_versions_columns_are_dropped_or_missed(tmp_path: Path) -> None:
    path = part_path(tmp_path / "telemetry", "clock", 0, 0)
    path.parent.mkdir(parents=True)
    pl.DataFrame({"rank": [0], "peer": [1], "offset_ns": [5], "mood": ["fine"]}).write_parquet(path)
    telemetry = read(tmp_path)
    assert telemetry.clock.row(0, named=True)["offset_ns"] == 5
    assert telemetry.clock.row(0, named=True)["round_trip_ns"] is None
    assert any("lacks the columns when, round_trip_ns" in problem for problem in telemetry.problems)


def test_gaps_that_the_hooks_noted_are_said(tmp_path: Path) -> None:
    (tmp_path / "telemetry").mkdir()
    gap = {"at_ns": 1, "what": "step of steps 3 to 4", "reason": "OSError: No space left on device", "count": 2}
    (tmp_path / "telemetry" / "rank1-gaps.json").write_text(json.dumps([gap]))
    problems = read(tmp_path).problems
    assert "rank1: step of steps 3 to 4 was lost (2 times): OSError: No space left on device" in problems


@pytest.mark.parametrize("text", ["{", "[]", "\x00"])
def test_a_damaged_run_file_is_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    telemetry = read(tmp_path)
    assert telemetry.run == {}
    assert any("run.json" in problem for problem in telemetry.problems)


def test_reading_needs_no_torch() -> None:
    script = "import sys, moescope.telemetry, moescope_hooks.schema; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


ODD_RUNS = {
    "controls": {"controls": 5},
    "basis": {"basis": []},
    "result": {"result": [1]},
    "parallel.ep_groups": {"parallel": {"ep_groups": [[0, "x"]]}},
    "parallel.expert_placement": {"parallel": {"ep_groups": [[0, 1]], "expert_placement": [0, 2]}},
    "1 texts": {"name": "\ud800"},
    "1 numbers": {"seeds": [10**30]},
}


@pytest.mark.parametrize("what", ODD_RUNS)
def test_fields_of_run_json_that_cannot_be_are_left_out_and_said(what, tmp_path):
    (tmp_path / "run.json").write_text(json.dumps(ODD_RUNS[what]))
    found = open_telemetry(tmp_path)
    assert len(found.problems) == 1
    assert what in found.problems[0]
    json.dumps(found.run, ensure_ascii=False).encode()
    assert not {"controls", "basis", "result"} & set(found.run)
    assert not found.run.get("parallel", {}).get("expert_placement")


def test_pipes_among_the_telemetry_are_not_opened(tmp_path):
    (tmp_path / "telemetry" / "step").mkdir(parents=True)
    for name in ("run.json", "routing.jsonl", "telemetry/rank0-gaps.json", "telemetry/step/rank0-000.parquet"):
        os.mkfifo(tmp_path / name)
    problems = open_telemetry(tmp_path).problems
    assert sum("a pipe" in problem for problem in problems) == 2
