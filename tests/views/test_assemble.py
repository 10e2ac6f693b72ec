"""What the hooks recorded beside the traces, joined with them; and rounding that keeps sums."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moescope_hooks.schema import TABLES
from tiny_moe import balanced, play
from tiny_trace import BASE_NS, write

from moescope.views.assemble.causes import _whole
from moescope.views.build import analyze


@given(st.lists(st.floats(0, 1e12), max_size=50))
def test_whole_numbers_keep_the_sum_and_stay_next_to_what_they_were(values: list[float]) -> None:
    whole = _whole(values)
    assert sum(whole) == round(sum(values))
    assert all(abs(number - value) <= 1 for number, value in zip(whole, values, strict=True))


RUN = {
    "schema": "moescope.run/1",
    "basis": "measured",
    "name": "tiny",
    "controls": ["router-bias: +2.0 on the experts of rank 0"],
    "parallel": {"world_size": 4, "ep_size": 2, "ep_groups": [[0, 1], [2, 3]], "expert_placement": [0, 0, 1, 1]},
    "seeds": {"data": 7},
}


def write_table(folder: Path, table: str, rank: int, rows: list[dict[str, Any]]) -> None:
    schema = TABLES[table]
    place = folder / "telemetry" / table
    place.mkdir(parents=True, exist_ok=True)
    full = [dict.fromkeys(schema) | {"rank": rank} | row for row in rows]
    pl.DataFrame(full, schema=dict(schema)).write_parquet(place / f"rank{rank}-0.parquet")


def _step(rank: int, step: int) -> dict[str, Any]:
    start = BASE_NS + 1000 * step
    times = {"start_ns": start, "end_ns": start + 500 + 100 * rank}
    return times | {
        "step": step,
        "tokens": 20,
        "loss": 2.0 + rank,
        "memory_allocated_peak_bytes": 100 * (step + 1) + rank,
    }


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two profiled steps of the tiny job, and telemetry of three: rank 0 and 2 route everything to expert 3."""
    write(play([balanced(0), balanced(1)]), tmp_path)
    (tmp_path / "run.json").write_text(json.dumps(RUN))
    for rank in range(4):
        counts = [0, 0, 0, 40] if rank in (0, 2) else [10, 10, 10, 10]
        load = {"microbatch": 0, "layer": 0, "counts": counts, "dropped": [0, 0, 0, 4]}
        write_table(tmp_path, "expert_load", rank, [load | {"step": step} for step in range(3)])
        write_table(tmp_path, "step", rank, [_step(rank, step) for step in range(3)])
    return tmp_path


def test_provenance_is_taken_from_the_run(run: Path) -> None:
    analysis = analyze(run, cache=False)
    assert (analysis.name, analysis.basis, analysis.controls) == ("tiny", "measured", tuple(RUN["controls"]))
    assert analysis.provenance == RUN
    assert not [entry for entry in analysis.missing if entry.what in ("expert counts", "run.json and telemetry")]


def test_counts_of_experts_go_before_rows_of_exchanges(run: Path) -> None:
    """Expert 3 receives 40 + 10 of the 80 assignments of its group; rank 1 of every group holds it and expert 2."""
    load = analyze(run, cache=False).load
    assert load is not None
    assert load.source == "telemetry"
    (layer,) = load.layers
    assert layer.expert_tokens == (20.0, 20.0, 20.0, 100.0)
    assert layer.rank_tokens == (20.0, 60.0, 20.0, 60.0)
    assert layer.maxvio_expert == pytest.approx(100 / 40 - 1)
    assert layer.maxvio_rank == pytest.approx(60 / 40 - 1)
    assert (layer.hottest_rank, layer.num_dead_experts) == (1, 0)
    assert layer.dropped_share == pytest.approx(16 * 3 / (160 * 3))
    assert [interval.step for interval in load.intervals] == [0, 1, 2]
    assert {interval.hottest_expert for interval in load.intervals} == {3}


def test_every_step_the_hooks_saw_is_there_profiled_or_not(run: Path) -> None:
    steps = analyze(run, cache=False).telemetry
    assert [(step.step, step.profiled) for step in steps] == [(0, True), (1, True), (2, False)]
    assert {(step.duration_ns, step.tokens, step.loss, step.gradient_norm) for step in steps} == {(800, 80, 3.5, None)}
    assert [step.start_ns - BASE_NS for step in steps] == [0, 1000, 2000]
    assert steps[0].maxvio_rank == pytest.approx(0.5)


def test_peaks_the_hooks_saw_stand_in_for_memory_events(run: Path) -> None:
    memory = analyze(run, cache=False).memory
    assert [(entry.rank, entry.allocated_peak_bytes, entry.peak_phase, entry.source) for entry in memory] == [
        (rank, 300 + rank, "step 2", "telemetry") for rank in range(4)
    ]


def test_telemetry_that_changed_is_another_result(run: Path) -> None:
    assert analyze(run).name == "tiny"
    (run / "run.json").write_text(json.dumps(RUN | {"name": "renamed"}))
    assert analyze(run).name == "renamed"


def test_a_run_file_that_cannot_be_read_is_said(run: Path) -> None:
    (run / "run.json").write_text("{")
    analysis = analyze(run, cache=False)
    assert analysis.basis == "unknown"
    assert any("run.json cannot be read" in entry.what for entry in analysis.missing)
    assert any(finding.code == "incomplete-input" for finding in analysis.findings)
    assert analysis.load is not None
    assert analysis.load.source == "telemetry"  # the groups are those of the all-to-alls


def test_a_basis_nobody_knows_is_unknown(run: Path) -> None:
    (run / "run.json").write_text(json.dumps(RUN | {"basis": "guessed"}))
    assert analyze(run, cache=False).basis == "unknown"
