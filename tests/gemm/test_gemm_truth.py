"""Losses inside ranks against simulated truth: what the fault cost is the step with it minus the step without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moescope.findings.model import Finding
from moescope.simulate import Model, SimConfig, parse_fault, simulate
from moescope.views.build import analyze


def simulated(tmp_path: Path, fault: str | None) -> tuple[dict[str, Finding], float]:
    """(findings by code, true cost per step ns) of 4 ranks, 2 steps, 3 layers with one fault."""
    faults = (parse_fault(fault),) if fault else ()
    config = SimConfig(ranks=4, steps=2, model=Model(num_layers=3), faults=faults)
    path = simulate(config, tmp_path / "run")
    truth = json.loads((path / "truth.json").read_text(encoding="utf-8"))
    cost = truth["faults"][0]["cost_ns_per_step"] if fault else 0.0
    return {finding.code: finding for finding in analyze(path, cache=False).findings}, cost


def test_large_experts_are_no_finding(tmp_path: Path) -> None:
    found, _ = simulated(tmp_path, None)
    assert not {"small-gemm", "allocator-stall", "recompute-cost"} & set(found)


def test_tokens_per_expert_are_the_simulated_ones(tmp_path: Path) -> None:
    """4,096 tokens with 8 experts each on 4 ranks, over 64 times 16 experts: 128 on average."""
    found, _ = simulated(tmp_path, "tiny_experts")
    assert found["small-gemm"].evidence["tokens_per_expert_median"] == pytest.approx(128, rel=0.02)
    assert found["small-gemm"].evidence["reference"] == "large products in the trace"
