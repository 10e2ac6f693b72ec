"""Matrix operations of a rank: counted once, with their kernels, their place and whether they repeat forward work."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from tiny_trace import WORKER, TinyRank, write

from moescope.attribution.gemm.calls import SCHEMA
from moescope.attribution.profile import profile_rank
from moescope.trace import open_directory

TRACES = Path(__file__).parents[3] / "shared/traces"
EVALUATE = "autograd::engine::evaluate_function: "
BF16 = {"Input type": ["c10::BFloat16"] * 3}


def calls_of(rank: TinyRank, folder: Path) -> pl.DataFrame:
    return profile_rank(open_directory(write([rank], folder)).ranks[0]).gemms


def recorded(name: str) -> pl.DataFrame:
    folder = TRACES / name
    if not folder.exists():
        pytest.skip(f"{folder} is not there")
    return profile_rank(open_directory(folder).ranks[0]).gemms


def test_nested_operations_count_once_and_their_kernels_belong_to_them(tmp_path: Path) -> None:
    rank = TinyRank(0, world_size=1)
    rank.step(1, 0, 1000)
    rank.op("aten::linear", 10, 100, **{"Input Dims": [[4, 8], [2, 8], [2]]}, **BF16)
    rank.op("aten::addmm", 20, 80, **{"Input Dims": [[2], [4, 8], [8, 2], [], []]}, **BF16)
    rank.kernel("gemm", 200, 50, launched=30)
    rank.kernel("splitKreduce", 260, 20, launched=60)
    rank.kernel("other", 300, 90, launched=150)
    rows = calls_of(rank, tmp_path)
    assert dict(rows.schema) == SCHEMA
    assert rows.select("op", "flops", "kernel_ns", "num_kernels", "gap_ns", "is_recompute").rows() == [
        ("aten::linear", 2 * 4 * 8 * 2, 70, 2, 10, False)
    ]


def test_a_kernel_without_a_launch_is_linked_by_its_external_id(tmp_path: Path) -> None:
    rank = TinyRank(0, world_size=1)
    rank.step(1, 0, 1000)
    rank.op("aten::mm", 10, 100, **{"Input Dims": [[4, 8], [8, 2]], "External id": 7}, **BF16)
    rank.kernel("gemm", 200, 50, **{"External id": 7})
    assert calls_of(rank, tmp_path)["kernel_ns"].to_list() == [50]


def test_gaps_between_single_experts_count_and_those_before_the_first_do_not(tmp_path: Path) -> None:
    rank = TinyRank(0, world_size=1)
    rank.step(1, 0, 1000)
    rank.annotate("moescope::L2.mb0.experts", 5, 500)
    for at in (10, 110, 210):
        rank.op("aten::mm", at, 50, **{"Input Dims": [[4, 8], [8, 2]]}, **BF16)
        rank.kernel("gemm", at + 100, 60, launched=at + 5)
    rows = calls_of(rank, tmp_path)
    assert rows.select("layer", "microbatch", "is_expert", "gap_ns").rows() == [
        (2, 0, True, 0),
        (2, 0, True, 40),
        (2, 0, True, 40),
    ]


def test_a_stall_between_experts_is_no_launch_gap(tmp_path: Path) -> None:
    rank = TinyRank(0, world_size=1)
    rank.step(1, 0, 1_000_000)
    rank.annotate("moescope::L2.mb0.experts", 5, 500_000)
    for at in (10, 300_000):
        rank.op("aten::mm", at, 50, **{"Input Dims": [[4, 8], [8, 2]]}, **BF16)
        rank.kernel("gemm", at + 100, 60, launched=at + 5)
    assert calls_of(rank, tmp_path)["gap_ns"].to_list() == [0, 0]


def test_experts_in_an_unannotated_backward_pass_are_known_by_their_shapes(tmp_path: Path) -> None:
    rank = TinyRank(0, world_size=1)
    rank.step(1, 0, 1000)
    rank.annotate("moescope::L0.mb0.experts", 5, 100)
    rank.op("aten::mm", 10, 50, **{"Input Dims": [[30, 8], [8, 2]]}, **BF16)
    rank.op("aten::mm", 200, 10, WORKER, **{"Input Dims": [[30, 2], [2, 8]]}, **BF16)
    rank.op("aten::mm", 220, 10, WORKER, **{"Input Dims": [[8, 30], [30, 2]]}, **BF16)
    rank.op("aten::mm", 240, 10, WORKER, **{"Input Dims": [[30, 5], [5, 9]]}, **BF16)
    rows = calls_of(rank, tmp_path).sort("start_ns")
    assert rows.select("is_expert", "rows").rows() == [(True, 30.0), (True, 30.0), (True, 30.0), (False, 30.0)]


@pytest.mark.parametrize(
    ("recomputes", "autograd"),
    [
        ("said", "MmBackward0"),
        ("reentrant", "CheckpointFunctionBackward"),
        ("frame", "MmBackward0"),
        ("before a forward operation", "GroupedMmBackward0"),
        ("between forward operations", "_FusedExpertsBackward"),
        ("a module's product", "SiluBackward0"),
        ("a function's product", "_FusedExpertsBackward"),
        ("plain", "MmBackward0"),
    ],
)
def test_recomputed_work_is_told_from_the_backward_pass(tmp_path: Path, recomputes: str, autograd: str) -> None:
    rank = TinyRank(0, world_size=1)
    rank.step(1, 0, 1000)
    rank.op(EVALUATE + autograd, 100, 400)
    if recomputes == "said":
        rank.annotate("moescope::L1.mb0.experts.recompute", 105, 100)
    if recomputes == "frame":
        rank.add("torch/utils/checkpoint.py(1500): recompute_fn", "python_function", 105, 100)
    for at in {"before a forward operation": (180,), "between forward operations": (106, 180)}.get(recomputes, ()):
        rank.op("aten::silu", at, 5)
    if "product" in recomputes:
        rank.op("aten::matmul", 119, 25)
    rank.op("aten::mm", 120, 20, **{"Input Dims": [[4, 8], [8, 2]]}, **BF16)
    rank.kernel("gemm", 600, 30, launched=125)
    if recomputes == "reentrant":
        rank.op(EVALUATE + "MmBackward0", 290, 100)
    rank.op("aten::mm", 300, 20, **{"Input Dims": [[4, 2], [2, 8]]}, **BF16)
    rank.kernel("gemm", 650, 40, launched=305)
    profile = profile_rank(open_directory(write([rank], tmp_path)).ranks[0])
    again = recomputes not in ("plain", "a function's product")
    assert profile.gemms["is_recompute"].to_list() == [again, False]
    labels = profile.segments.filter(pl.col("start_ns") % 1_000_000 == 600)["label"].to_list()
    assert labels == [6 if again else 2]


def test_nothing_is_counted_twice_in_recorded_traces() -> None:
    rows = recorded("b200_eager")
    assert rows.group_by("op", "m", "n", "k").agg(pl.len(), pl.col("flops").first()).sort("n").rows() == [
        ("aten::linear", 888, 128, 2880, 36, 654_704_640),
        ("aten::linear", 888, 640, 2880, 36, 3_273_523_200),
        ("aten::linear", 888, 2880, 512, 36, 2_618_818_560),
        ("aten::linear", 1, 25136, 2880, 1, 144_783_360),
    ]
    assert (rows["num_kernels"] == 1).all()


def test_checkpointed_convolutions_are_recognised() -> None:
    rows = recorded("mi300_resnet_ckpt")
    forward = rows.filter((pl.col("op") == "aten::conv2d") & ~pl.col("is_recompute"))
    again = rows.filter("is_recompute")
    assert (len(forward), len(again), rows["step"].n_unique()) == (60, 57, 3)
    assert set(again["op"]) == {"aten::conv2d"}
    one_step = forward.filter(pl.col("step") == 15)["flops"].sum()
    assert one_step == 2 * 10 * 1_813_561_344  # images, and multiplications of ResNet-18's convolutions at 224 x 224


def test_host_operations_take_their_own_time_and_experts_are_found_both_ways() -> None:
    rows = recorded("gloo_moe_ep4")
    experts = rows.filter("is_expert")
    assert len(rows) == 84
    assert len(experts) == 80
    assert experts["flops"].sum() == experts.select(2 * pl.col("rows") * 128 * 256).sum().item()
    assert set(rows.filter(~pl.col("is_expert"))["flops"]) == {2 * 512 * 128 * 8}


def test_a_trace_without_shapes_gives_no_rows() -> None:
    assert recorded("qwen3_moe_mi300_decode").is_empty()
