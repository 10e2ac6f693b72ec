"""A skewed run and one with forced uniform routing of the same model: what the analysis says of the two."""

from __future__ import annotations

from pathlib import Path

import pytest
import rank_jobs
from miniature import mini_config
from rank_pool import RankPool

from moescope.cli import main
from moescope.trainer.loop import Job
from moescope.views.build import analyze
from moescope.views.compare import compare
from moescope.views.model import Analysis

TEXT = "wave salt tide foam gull seed corn plough barn hedge " * 400


@pytest.fixture(scope="module")
def runs(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run directories of a model whose step is mostly experts, by how its routing was forced."""
    root = tmp_path_factory.mktemp("headroom")
    (root / "text.txt").write_text(TEXT)
    found = {}
    for routing in ("zipf", "uniform"):
        config = mini_config(
            model={"num_layers": 2, "dim": 64},
            moe={"expert_hidden_dim": 1024},
            train={"steps": 4, "sequence_length": 64},
            data={"files": [str(root / "text.txt")]},
            profile={"enabled": True, "start": 2, "steps": 2},
            control={"routing": routing, "zipf_exponent": 1.5},
        )
        found[routing] = root / routing
        ranks.run(rank_jobs.run_job, Job(config, found[routing], ("moescope", "train")), 4)
    return found


@pytest.fixture(scope="module")
def analyses(runs: dict[str, Path]) -> dict[str, Analysis]:
    return {routing: analyze(path, workers=1) for routing, path in runs.items()}


def test_the_skewed_run_is_told_by_its_routing(analyses: dict[str, Analysis]) -> None:
    """Rank 0 holds experts 0 and 1, which take most of what is drawn by 1 / (e + 1)^1.5."""
    skewed = analyses["zipf"]
    finding = next(f for f in skewed.findings if f.code == "load-imbalance")
    assert finding.rank == 0
    assert skewed.load is not None
    assert skewed.load.maxvio_rank > 1
    assert [control.partition(":")[0] for control in skewed.controls] == ["forced-zipf-routing"]
    assert skewed.provenance["validates_quality"] is False


def test_forced_uniform_routing_has_no_imbalance_to_report(analyses: dict[str, Analysis]) -> None:
    uniform = analyses["uniform"]
    assert uniform.load is not None
    assert uniform.load.maxvio_rank == 0
    assert "load-imbalance" not in {f.code for f in uniform.findings}
    assert uniform.controls == ("forced-uniform-routing: every expert gets as many assignments as any other",)


def test_the_difference_is_the_headroom(analyses: dict[str, Analysis]) -> None:
    comparison = compare(analyses["zipf"], analyses["uniform"])
    changed = {change.metric: change for change in comparison.changes}
    assert changed["maxvio_rank"].b == 0
    assert changed["maxvio_rank_received"].b == 0
    assert changed["maxvio_rank"].a == pytest.approx(changed["maxvio_rank_received"].a, rel=0.3)
    assert "load-imbalance" in {f.code for f in comparison.gone_findings}
    assert {"step_ns", "telemetry_step_ns", "validation_loss:text"} <= set(changed)


@pytest.mark.parametrize("routing", ["zipf", "uniform"])
def test_every_output_shows_the_control(
    runs: dict[str, Path], routing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", str(runs[routing]), "--workers", "1"]) == 0
    assert f"Control: forced-{routing}-routing" in capsys.readouterr().out
    page = tmp_path / "report.html"
    assert main(["report", str(runs[routing]), "-o", str(page), "--workers", "1"]) == 0
    assert f"forced-{routing}-routing" in page.read_text(encoding="utf-8")
