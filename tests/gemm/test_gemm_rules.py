"""The findings about losses inside ranks, on tiny traces, through to the view model and the JSON."""

from __future__ import annotations

import json
from pathlib import Path

from tiny_trace import TinyRank, write

from moescope.findings.model import Finding
from moescope.views.build import analyze
from moescope.views.json import to_json
from moescope.views.model import Analysis

BF16 = {"Input type": ["c10::BFloat16"] * 3}
EVALUATE = "autograd::engine::evaluate_function: "
US = 1000


def analysed(tmp_path: Path, *, expert_us: int = 0, allocator_us: int = 0, recompute_us: int = 0) -> Analysis:
    """Two ranks, two steps of 1 ms: eight large products, then what the test adds (the allocator on rank 1 alone)."""
    ranks = [TinyRank(number, world_size=2, device="NVIDIA H100 80GB HBM3") for number in (0, 1)]
    for rank in ranks:
        for step in (0, 1):
            at = step * 1000 * US
            rank.step(step, at, 1000 * US)
            for index in range(8):  # 2 * 2048 * 1024 * 1024 FLOPs in 10 us: 429 TFLOP/s
                start = at + (1 + index) * US // 2
                rank.op("aten::mm", start, 100, **{"Input Dims": [[2048, 1024], [1024, 1024]]}, **BF16)
                rank.kernel("gemm", at + (10 + 10 * index) * US, 10 * US, launched=start + 10)
            if expert_us:
                rank.annotate("moescope::L3.mb0.experts", at + 100 * US, 50 * US)
                dims = {"Input Dims": [[64, 1024], [8, 1024, 1024], [8]]}
                rank.op("aten::_grouped_mm", at + 101 * US, 100, **dims, **BF16)
                rank.kernel("cutlass grouped", at + 200 * US, expert_us * US, launched=at + 101 * US + 10)
            if recompute_us:
                rank.op(EVALUATE + "CheckpointFunctionBackward", at + 160 * US, 10 * US)
                rank.op("aten::mm", at + 161 * US, 100, **{"Input Dims": [[2048, 1024], [1024, 1024]]}, **BF16)
                rank.kernel("gemm", at + 600 * US, recompute_us * US, launched=at + 161 * US + 10)
            if allocator_us and rank.rank == 1:
                rank.call("cudaMalloc", at + 800 * US, allocator_us * US)
            rank.kernel("end", at + 990 * US, 10 * US, launched=at + 190 * US)
    return analyze(write(ranks, tmp_path / "run"), cache=False)


def found(analysis: Analysis) -> dict[str, Finding]:
    return {finding.code: finding for finding in analysis.findings}


def test_small_products_cost_what_they_take_beyond_the_reference(tmp_path: Path) -> None:
    """64 rows of 8 experts: 134 MFLOP take 0.31 us at the large products' 429 TFLOP/s."""
    analysis = analysed(tmp_path, expert_us=40)
    finding = found(analysis)["small-gemm"]
    ideal_ns = 2 * 64 * 1024 * 1024 / 429_496.7296
    assert finding.cost_ns_per_step == round(40_000 - ideal_ns)
    assert finding.layer == 3
    assert finding.evidence["tokens_per_expert_median"] == 8.0
    assert finding.evidence["reference"] == "large products in the trace"
    assert sum(finding.evidence["loss_by_part_ns"].values()) == finding.cost_ns_per_step


def test_small_products_are_reported_from_two_percent(tmp_path: Path) -> None:
    assert "small-gemm" not in found(analysed(tmp_path, expert_us=19))
    assert found(analysed(tmp_path / "b", expert_us=21))["small-gemm"].severity == "warning"
    assert found(analysed(tmp_path / "c", expert_us=101))["small-gemm"].severity == "warning"


def test_recomputation_is_a_part_and_a_finding(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, recompute_us=30)
    finding = found(analysis)["recompute-cost"]
    assert finding.cost_ns_per_step == 30_000
    assert finding.evidence["recompute_flops"] * 8 == finding.evidence["model_flops"]
    assert all(rank.parts_ns["compute.recompute"] == 30_000 for rank in analysis.ranks)
    assert "recompute-cost" not in found(analysed(tmp_path / "b", recompute_us=19))


def test_a_rank_that_stalls_in_the_allocator_is_named(tmp_path: Path) -> None:
    finding = found(analysed(tmp_path, allocator_us=50))["allocator-stall"]
    assert (finding.rank, finding.cost_ns_per_step) == (1, 50_000)
    assert "allocator-stall" not in found(analysed(tmp_path / "b", allocator_us=19))


def test_the_view_holds_rates_utilisation_and_buckets(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, expert_us=40)
    gemm = analysis.gemm
    assert gemm is not None
    assert [(ref.dtype, round(ref.rate_tflops, 2)) for ref in gemm.references] == [("bfloat16", 429.5)]
    assert [(bucket.low_rows, bucket.high_rows, bucket.cost.calls_per_step) for bucket in gemm.buckets] == [
        (0, 16, 1.0)
    ]
    assert [layer.layer for layer in gemm.layers] == [3]
    assert gemm.covered_share == 1.0
    flops = 8 * 2 * 2048 * 1024 * 1024 + 2 * 64 * 1024 * 1024
    assert gemm.by_rank[0].flops == flops
    assert gemm.by_rank[0].utilisation == flops / (989_500 * analysis.ranks[0].window_ns)
    for cost in (gemm.experts, gemm.other, *(layer.cost for layer in gemm.layers)):
        assert sum(cost.parts_ns_per_step.values()) == cost.loss_ns_per_step
    section = to_json(analysis, ("gemms",))["gemms"]
    assert json.loads(json.dumps(section)) == section
    assert "gemms" not in to_json(analysis)


def test_without_shapes_the_answer_is_missing(tmp_path: Path) -> None:
    rank = TinyRank(0, world_size=1)
    rank.step(0, 0, 1000)
    rank.kernel("gemm", 100, 200, launched=50)
    analysis = analyze(write([rank], tmp_path), cache=False)
    assert analysis.gemm is None
    assert "shapes of matrix products" in [missing.what for missing in analysis.missing]
