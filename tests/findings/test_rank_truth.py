"""Losses inside ranks and hosts against simulated truth: the step with the fault minus the step without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moescope.findings.model import Finding
from moescope.simulate import Model, SimConfig, parse_fault, simulate
from moescope.views.build import analyze
from moescope.views.model import Analysis


def simulated(tmp_path: Path, fault: str, seed: int, steps: int = 2) -> tuple[Analysis, dict[str, Any]]:
    """(analysis, truth of the fault) of 4 ranks and 3 layers."""
    config = SimConfig(ranks=4, steps=steps, seed=seed, model=Model(num_layers=3), faults=(parse_fault(fault),))
    path = simulate(config, tmp_path / "run")
    truth = json.loads((path / "truth.json").read_text(encoding="utf-8"))
    return analyze(path, cache=False), truth["faults"][0]


def of_code(analysis: Analysis, code: str) -> list[Finding]:
    return [finding for finding in analysis.findings if finding.code == code]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("fault", "code", "rank"),
    [
        ("tiny_experts", "small-gemm", None),
        ("allocator_stall", "allocator-stall", 0),
        ("near_full_memory:rank=2", "allocator-stall", 2),
        ("host_jitter:rank=1", "host-bound", 1),
        ("host_jitter:rank=-1", "host-bound", None),
        ("host_jitter:rank=-1,share=1.0,mean_us=300", "host-bound", None),
    ],
)
def test_the_right_finding_costs_what_the_fault_does(
    fault: str, code: str, rank: int | None, seed: int, tmp_path: Path
) -> None:
    analysis, truth = simulated(tmp_path, fault, seed)
    (finding,) = of_code(analysis, code)
    assert finding.rank == rank
    assert finding.cost_ns_per_step == pytest.approx(truth["cost_ns_per_step"], rel=0.05)


def test_near_full_memory_is_told_beside_its_stalls(tmp_path: Path) -> None:
    analysis, _ = simulated(tmp_path, "near_full_memory:rank=2,share=0.97", 3)
    (finding,) = of_code(analysis, "memory-peak")
    assert finding.rank == 2
    capacity = finding.evidence["capacity_bytes"]
    assert finding.evidence["allocated_peak_bytes"] == pytest.approx(0.97 * capacity, rel=0.001)


def test_the_operation_behind_a_late_batch_is_named(tmp_path: Path) -> None:
    analysis, truth = simulated(tmp_path, "data_loader_stall:rank=-1", 0)
    (finding,) = of_code(analysis, "host-bound")
    assert finding.cost_ns_per_step == pytest.approx(truth["cost_ns_per_step"], rel=0.05)
    top = next(iter(finding.evidence["operations_ns"]))
    assert top.startswith("outside ")
    assert "DataLoader" in top
    assert analysis.host.idle[0].operation in top


def test_bytes_per_token_are_those_that_the_forward_pass_keeps(tmp_path: Path) -> None:
    """The hot rank's peak is higher by what its additional rows keep."""
    analysis, _ = simulated(tmp_path, "expert_skew:rank=2,factor=2", 0, steps=3)
    rows = analysis.memory_use.tokens
    assert [row.rank for row in rows] == [0, 1, 2, 3]
    fit = rows[0]
    peaks = {row.rank: row.allocated_peak_bytes for row in analysis.memory}
    tokens = {row.rank: row.tokens for row in rows}
    slope = (peaks[2] - peaks[0]) / (tokens[2] - tokens[0])
    assert fit.bytes_per_token == pytest.approx(slope, rel=0.02)
    assert fit.bytes_per_token_low < fit.bytes_per_token < fit.bytes_per_token_high
    hot = rows[2]
    assert hot.tokens_over_mean > 1.4
    assert hot.peak_over_mean is not None
    assert hot.peak_over_mean > 1.1
    assert hot.headroom_bytes is not None
    assert hot.tokens_at_limit == pytest.approx(hot.tokens + hot.headroom_bytes / fit.bytes_per_token)
    assert [peak.profiled for peak in analysis.memory_use.steps].count(True) == 3
