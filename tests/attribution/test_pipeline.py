"""Pipelines: bubbles are no rank's fault, and what a rank's delay costs is what the run is shorter by without it."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from moescope.attribution.delays import charge_waits
from moescope.attribution.replay import saved_ns
from moescope.simulate import Model, SimConfig, parse_fault, simulate
from moescope.views.build import analyze
from moescope.views.model import Analysis

MODEL = Model(num_layers=4, num_experts=16, top_k=4, expert_hidden=2048, vocabulary=8192)


def played(folder: Path, *faults: str, **fields: Any) -> tuple[Analysis, dict[str, Any]]:
    plain = {"ranks": 8, "pipeline": 2, "microbatches": 4, "steps": 2, "model": MODEL}
    config = SimConfig(faults=tuple(map(parse_fault, faults)), **{**plain, **fields})
    path = simulate(config, folder / "run")
    return analyze(path, workers=1, cache=False), json.loads((path / "truth.json").read_text())


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return played(tmp_path_factory.mktemp("pipeline"))[0]


def costs(analysis: Analysis) -> dict[tuple[str, int | None], int]:
    found: dict[tuple[str, int | None], int] = defaultdict(int)
    for cause in analysis.causes:
        found[cause.cause, cause.rank] += cause.cost_ns_per_step
    return found


def test_a_healthy_pipeline_accuses_no_rank(healthy: Analysis) -> None:
    assert {finding.code for finding in healthy.findings} <= {"pipeline-bubbles", "exposed-communication", "balanced"}
    assert {"pipeline-bubbles", "balanced"} <= {finding.code for finding in healthy.findings}
    step = healthy.steps[0].window_ns
    assert max(ns for (cause, _), ns in costs(healthy).items() if cause != "pipeline") < 0.005 * step
    assert all(sum(rank.parts_ns.values()) == rank.window_ns for rank in healthy.ranks)


def test_the_stage_that_computes_longest_is_named_where_it_makes_the_others_wait(tmp_path: Path) -> None:
    """Twice the microbatches leave little to fill and drain; the second stage has the head."""
    analysis, _ = played(tmp_path, microbatches=8, model=Model(num_layers=2, num_experts=16, vocabulary=65_536))
    (finding,) = (f for f in analysis.findings if f.code == "pipeline-bubbles")
    assert "because stage 1 computes longest" in finding.claim
    assert finding.evidence["is_upper_bound"]


def test_one_rank_in_a_stage_has_no_like_and_the_finding_says_so(tmp_path: Path) -> None:
    analysis, _ = played(tmp_path, "slow_rank:rank=1,factor=1.5", ranks=2)
    codes = {finding.code: finding for finding in analysis.findings}
    assert "slow-rank" not in codes
    assert "balanced" not in codes
    assert "cannot be told" in codes["pipeline-bubbles"].claim
    assert codes["pipeline-bubbles"].confidence == "low"


@pytest.mark.parametrize(
    ("fault", "cause", "fields"),
    [
        ("slow_rank:rank=6,factor=1.4", "slow_rank", {}),
        ("slow_rank:rank=1,factor=1.4", "slow_rank", {"ranks_per_host": 4}),
        ("slow_rank:rank=3,factor=1.4", "slow_rank", {"ranks": 4}),
        ("data_loader_stall:rank=5,ms=9", "host", {}),
        ("expert_skew:rank=2,factor=2", "expert_load", {}),
    ],
)
def test_a_fault_is_charged_what_the_run_without_it_is_shorter_by(
    tmp_path: Path, fault: str, cause: str, fields: dict[str, Any]
) -> None:
    analysis, truth = played(tmp_path, fault, **fields)
    (true,) = truth["faults"]
    found = {key: ns for key, ns in costs(analysis).items() if key[0] != "pipeline"}
    top, rank = max(found, key=lambda key: found[key])
    assert (top, rank in true["ranks"]) == (cause, True)
    whole = sum(ns for (name, _), ns in found.items() if name in {cause, "volume_imbalance"})
    assert whole == pytest.approx(true["cost_ns_per_step"], abs=0.02 * truth["step_ns"])


def test_waits_in_messages_are_those_of_the_simulation(tmp_path: Path) -> None:
    analysis, truth = played(tmp_path, "slow_rank:rank=6")
    true = {
        (rank, c["end_ns"][at]): c["removable_wait_ns"][at]
        for c in truth["collectives"]
        if c["kind"] == "p2p"
        for at, rank in enumerate(c["ranks"])
    }
    found = {
        (member.rank, member.end_ns): member.removable_wait_ns
        for c in analysis.collectives
        if c.kind == "p2p"
        for member in c.by_rank
    }
    assert found.keys() == true.keys()
    assert max(abs(found[key] - true[key]) for key in true) <= 1


def rows_of(table: list[tuple[int, int, int, int, int, int | None]]) -> pl.DataFrame:
    """(instance, rank, stage, start, end, late rank) as ``spans.spans`` gives them; all wait for the last."""
    names = ["instance", "rank", "stage", "start_ns", "end_ns", "late_rank"]
    rows = pl.DataFrame(table, schema=names, orient="row")
    latest = pl.col("start_ns").max().over("instance")
    wait = (latest - pl.col("start_ns")).alias("arrival_wait_ns")
    return rows.with_columns(
        wait, removable_wait_ns=wait, exposed_wait_ns=wait, is_blocking=True, step=0, layer=pl.lit(None, pl.Int32),
        turn=pl.col("instance"), kind=pl.lit("all_reduce"), bottleneck_rank=pl.lit(None, pl.Int64),
        transfer_ns=pl.col("end_ns") - latest, even_links_ns=pl.lit(None, pl.Float64),
    )  # fmt: skip


class Line:
    """A timeline from 0 to 200."""

    edges_ns = np.array([0, 200])


ROWS = rows_of(
    [
        (0, 0, 0, 100, 110, None), (0, 1, 0, 60, 110, 0), (1, 1, 0, 130, 140, None), (1, 2, 1, 20, 140, 1),
        (2, 2, 1, 160, 170, None), (2, 0, 0, 150, 170, 2),
    ]
)  # fmt: skip


def test_a_run_played_again_as_it_was_is_as_long() -> None:
    lines: Any = dict.fromkeys(range(3), Line())
    nothing = np.zeros((1, len(ROWS)))
    assert saved_ns(ROWS, lines, nothing, nothing).tolist() == [0]


def test_a_delay_saves_until_another_rank_is_last() -> None:
    """Rank 0 is 40 later than rank 1 at first; of 50 less only those 40 bring rank 1 and all after it forward."""
    lines: Any = dict.fromkeys(range(3), Line())
    shorter = np.zeros((3, len(ROWS)))
    shorter[0, 0], shorter[1, 0] = 30, 50
    saved = saved_ns(ROWS, lines, shorter, np.zeros_like(shorter))
    assert saved.tolist() == [30, 40, 0]
    shorter_transfer = np.zeros((1, len(ROWS)))
    shorter_transfer[0, 2:4] = 4
    assert saved_ns(ROWS, lines, np.zeros_like(shorter_transfer), shorter_transfer).tolist() == [4]


def test_of_a_wait_for_another_stage_only_deviations_are_charged_to_ranks() -> None:
    deviation = np.zeros((len(ROWS), 8))
    deviation[0, 1] = 15.0  # rank 0's span beyond its stage's median
    charges = charge_waits(ROWS, deviation, dict.fromkeys(range(3), 0))
    assert charges["charged_ns"].sum() == pytest.approx(ROWS["arrival_wait_ns"].sum())
    by_cause = {(cause, who, at): ns for at, cause, who, ns in
                charges.select("instance", "cause", "culprit", "charged_ns").iter_rows()}  # fmt: skip
    assert by_cause["slow_rank", 0, 0] == pytest.approx(40)
    assert by_cause["slow_rank", 0, 1] == pytest.approx(15)
    assert by_cause["pipeline", None, 1] == pytest.approx(95)
    assert by_cause["pipeline", None, 2] == pytest.approx(10)
