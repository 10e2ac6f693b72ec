"""Memory beside the peaks, and the host, from a folder to the view model, the JSON and the text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_trace import TinyRank, write
from torch_snapshot import ADAM, LINEAR, TinySnapshot

from moescope.attribution.memory import BEFORE_WINDOW
from moescope.cli import main
from moescope.views.assemble.memory import with_state
from moescope.views.build import analyze
from moescope.views.json import to_json

US = 1000


def folder(tmp_path: Path) -> Path:
    """Two ranks whose device idles for aten::item, and rank 1's allocator snapshot."""
    ranks = []
    for number in (0, 1):
        rank = TinyRank(number, world_size=2, memory_bytes=10_000)
        rank.step(0, 0, 100 * US)
        rank.kernel("work", 0, 20 * US, launched=0)
        rank.op("aten::item", 18 * US, 12 * US)
        rank.call("cudaStreamSynchronize", 19 * US, 10 * US)
        rank.kernel("work", 60 * US, 40 * US, launched=55 * US)
        rank.memory(10 * US, 4000, addr=1, total=4000)
        ranks.append(rank)
    path = write(ranks, tmp_path / "run")
    snapshot = TinySnapshot()
    blocks = [(600, "active_allocated", LINEAR), (300, "inactive", ()), (100, "active_allocated", ADAM)]
    snapshot.segment(1000, 1000, blocks)
    snapshot.write(path / "rank1_memory.pickle")
    return path


def test_a_snapshot_beside_the_traces_is_taken_apart(tmp_path: Path) -> None:
    path = folder(tmp_path)
    (found,) = analyze(path, cache=False).memory_use.snapshots
    assert (found.rank, found.reserved_bytes, found.allocated_bytes, found.free_split_bytes) == (1, 1000, 700, 300)
    assert found.allocated_by_category == {"activations": 600, "optimizer": 100}


def test_a_new_snapshot_makes_a_stored_result_stale(tmp_path: Path) -> None:
    path = folder(tmp_path)
    assert len(analyze(path).memory_use.snapshots) == 1
    (path / "rank1_memory.pickle").unlink()
    assert analyze(path).memory_use.snapshots == ()


def test_a_snapshot_that_cannot_be_read_is_missing(tmp_path: Path) -> None:
    path = folder(tmp_path)
    (path / "rank0_memory.pickle").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    analysis = analyze(path, cache=False)
    assert [snapshot.rank for snapshot in analysis.memory_use.snapshots] == [1]
    (missing,) = [entry for entry in analysis.missing if "rank0_memory.pickle" in entry.what]
    assert "instruction GLOBAL" in missing.what
    assert "_dump_snapshot" in missing.how_to_record


def test_the_json_holds_both_sections_and_the_text_the_operation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder(tmp_path)
    analysis = analyze(path, cache=False)
    answer = to_json(analysis, ("memory", "host"))
    assert json.loads(json.dumps(answer))["memory_use"]["snapshots"][0]["file"] == "rank1_memory.pickle"
    assert json.loads(json.dumps(answer))["host"]["idle"][0]["operation"] == "aten::item"
    assert "memory_use" not in to_json(analysis)
    assert main(["analyze", str(path), "--no-cache"]) == 0
    assert "aten::item" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (
            {"parameters": 300, "optimizer": 150},
            {"experts": 50, "parameters": 300, "optimizer": 150, BEFORE_WINDOW: 50},
        ),
        ({"parameters": 300, "optimizer": 200}, {"experts": 50, "parameters": 300, "optimizer": 200}),
        ({"parameters": 900}, {"experts": 50, BEFORE_WINDOW: 500}),
        (None, {"experts": 50, BEFORE_WINDOW: 500}),
    ],
)
def test_what_was_there_before_is_named_where_telemetry_knows_it(
    state: dict[str, int] | None, expected: dict[str, int]
) -> None:
    assert with_state({"experts": 50, BEFORE_WINDOW: 500}, state) == expected


def test_reserved_memory_at_the_peak_is_kept(tmp_path: Path) -> None:
    memory = analyze(folder(tmp_path), cache=False).memory
    assert [(row.allocated_peak_bytes, row.reserved_at_peak_bytes) for row in memory] == [(4000, 8000)] * 2


def test_doctor_tells_of_snapshots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder(tmp_path)
    (path / "rank0_memory.pickle").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    assert main(["doctor", str(path), "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert "rank1_memory.pickle: a memory snapshot of rank 1, 0 actions" in notes
    assert any(note.startswith("rank0_memory.pickle: memory snapshot not read") for note in notes)
