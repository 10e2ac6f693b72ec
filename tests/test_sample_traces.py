"""The sample runs give the verdicts that their README promises, and say what they are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from moescope.views.build import analyze
from moescope.views.model import Analysis

SAMPLES = Path(__file__).parent.parent / "sample_traces"


@pytest.fixture(scope="module")
def analyses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Analysis]:
    """Every sample, analysed on a copy so that nothing is written beside it."""
    found = {}
    for run in sorted(path.parent for path in SAMPLES.glob("*/run.json")):
        copy = tmp_path_factory.mktemp("samples") / run.name
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns(".moescope"))
        found[run.name] = analyze(copy, cache=False)
    return found


def test_the_skewed_run_is_blamed_on_the_biased_rank_with_a_cost(analyses: dict[str, Analysis]) -> None:
    first = analyses["skewed"].findings[0]
    assert (first.code, first.rank) == ("load-imbalance", 2)
    assert first.cost_ns_per_step > 0.05 * analyses["skewed"].steps[0].window_ns
    assert analyses["skewed"].controls


def test_the_same_run_unbiased_is_not(analyses: dict[str, Analysis]) -> None:
    assert analyses["balanced"].findings[0].code != "load-imbalance"
    assert not analyses["balanced"].controls


def test_the_simulated_run_names_the_slow_rank_and_both_clocks(analyses: dict[str, Analysis]) -> None:
    run = analyses["two-hosts"]
    assert (run.findings[0].code, run.findings[0].rank) == ("slow-rank", 5)
    assert run.basis == "simulated"
    assert {finding.basis for finding in run.findings} <= {"simulated", "inferred"}
    truth = json.loads((SAMPLES / "two-hosts" / "truth.json").read_text())["clock"]
    for clock, known in zip(run.clock, truth, strict=True):
        drifted = known["drift_ppm"] * 1e-6 * (clock.origin_ns - known["t0_ns"])
        assert clock.low_ns <= known["offset_ns"] + drifted <= clock.high_ns
        assert clock.offset_ns == pytest.approx(known["offset_ns"] + drifted, abs=10_000)


def test_parts_sum_to_every_step(analyses: dict[str, Analysis]) -> None:
    for analysis in analyses.values():
        assert analysis.ranks
        for row in analysis.ranks:
            assert sum(row.parts_ns.values()) == row.window_ns


@pytest.mark.parametrize("run", ["balanced", "skewed", "two-hosts"])
def test_provenance_holds_no_path_of_the_machine_that_made_it(run: str) -> None:
    info = json.loads((SAMPLES / run / "run.json").read_text())
    assert info["basis"] == ("simulated" if run == "two-hosts" else "measured")
    assert not [part for part in info["command"] if part.startswith("/")]
    assert not [file for file in info.get("data", {}).get("files", []) if file["path"].startswith("/")]
