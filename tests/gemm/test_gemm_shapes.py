"""FLOPs and bytes by shape, against values worked out by hand."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moescope.attribution.gemm.shapes import MatrixOp, matrix_op
from moescope.attribution.gemm.tiles import tile_of

BF16, F32, F8 = "c10::BFloat16", "float", "c10::Float8_e4m3fn"


def op(name: str, dims: object, types: list[str], concrete: list[str] | None = None) -> MatrixOp:
    found = maybe(name, dims, types, concrete)
    assert found is not None
    return found


def maybe(name: str, dims: object, types: list[str], concrete: list[str] | None = None) -> MatrixOp | None:
    return matrix_op(f"aten::{name}", json.dumps(dims), json.dumps(types), json.dumps(concrete) if concrete else None)


@pytest.mark.parametrize(
    ("name", "dims", "types", "flops", "moved"),
    [
        ("mm", [[3, 5], [5, 7]], [F32, F32], 2 * 3 * 5 * 7, 4 * (15 + 35 + 21)),
        ("addmm", [[7], [3, 5], [5, 7], [], []], [BF16] * 3, 210, 2 * (15 + 35 + 21)),
        ("addmm", [[3, 7], [3, 5], [5, 7], [], []], [F32] * 3, 210, 4 * (15 + 35 + 21 + 21)),
        ("bmm", [[2, 3, 5], [2, 5, 7]], [BF16] * 2, 420, 2 * 2 * (15 + 35 + 21)),
        ("baddbmm", [[2, 3, 7], [2, 3, 5], [2, 5, 7], [], []], [BF16] * 3, 420, 4 * (15 + 35 + 21 + 21)),
        ("linear", [[2, 3, 5], [7, 5], [7]], [BF16] * 3, 420, 2 * (30 + 35 + 42)),
        ("matmul", [[3, 5], [5, 7]], [F32] * 2, 210, 4 * 71),
        ("matmul", [[4, 3, 5], [5, 7]], [F32] * 2, 840, 4 * (60 + 35 + 84)),
        ("matmul", [[4, 1, 3, 5], [2, 5, 7]], [F32] * 2, 8 * 210, 8 * 4 * 71),
        ("matmul", [[3, 5], [5]], [F32] * 2, 30, 4 * (15 + 5 + 3)),
        ("_scaled_mm", [[16, 32], [32, 64], [], []], [F8, F8, F32, F32], 65536, 16 * 32 + 32 * 64 + 2 * 16 * 64),
        ("_grouped_mm", [[10, 4], [3, 4, 6], [3], [], []], [BF16, BF16, "int"], 480, 2 * (40 + 72 + 60)),
        ("_grouped_mm", [[4, 10], [10, 6], [3], [], []], [BF16, BF16, "int"], 480, 2 * (40 + 60 + 3 * 24)),
        ("_grouped_mm", [[3, 4, 5], [3, 5, 6], []], [BF16, BF16], 720, 2 * 3 * (20 + 30 + 24)),
        ("_scaled_grouped_mm", [[10, 4], [3, 4, 6], [10], [3, 6], [3]], [F8, F8, F32, F32], 480, 40 + 72 + 2 * 60),
        ("scaled_dot_product_attention", [[2, 3, 8, 4]] * 3, [BF16] * 3, 4 * 6 * 8 * 8 * 4, 2 * 4 * 192),
    ],
)  # fmt: skip
def test_flops_and_bytes(name: str, dims: object, types: list[str], flops: int, moved: int) -> None:
    found = op(name, dims, types)
    assert (found.flops, found.bytes) == (flops, moved)


def test_shapes_of_real_traces() -> None:
    qkv = op("linear", [[888, 2880], [640, 2880], [640]], [BF16] * 3)
    experts = op("_grouped_mm", [[2624, 1024], [8, 1024, 4096], [8], [], []], [BF16, BF16, "int", "", ""])
    router = op("matmul", [[512, 128], [128, 8]], [F32, F32])
    assert qkv.flops == 3_273_523_200
    assert experts.flops == 22_011_707_392
    assert experts.rows == 328
    assert router.flops == 1_048_576


@pytest.mark.parametrize(
    ("name", "dims", "groups"),
    [
        ("GroupedGemm", [[10, 4], [3, 4, 6], [3]], 3),
        ("GroupedGemm", [[10, 4], [3, 6, 4], [3]], 3),
        ("fbgemm::bf16bf16bf16_grouped_mm", [[10, 4], [3, 6, 4], [3], []], 3),
        ("deep_gemm::m_grouped_fp8_gemm_nt_contiguous", [[10, 4], [10, 1], [3, 6, 4], [3, 1, 1], [10, 6], [10]], 3),
        ("_C::cutlass_moe_mm", [[10, 4], [3, 4, 6], [10, 1], [3, 1]], 3),
        ("ck_grouped_gemm", [[10, 4], [3, 4, 6], [3]], 3),
        ("triton::_grouped_gemm_forward", [[10, 4], [3, 6, 4], [3]], 3),
        ("_GroupedLinear", [[10, 4], [], [6, 4], [6, 4], [6, 4]], 3),
    ],
)
def test_grouped_products_of_other_libraries(name: str, dims: list[list[int]], groups: int) -> None:
    found = matrix_op(name, json.dumps(dims), json.dumps([BF16] * len(dims)), None)
    assert found is not None
    assert (found.flops, found.groups, found.n, found.k) == (2 * 10 * 4 * 6, groups, 6, 4)
    assert matrix_op(f"{name}Backward", json.dumps(dims), json.dumps([BF16] * len(dims)), None) is None
    assert matrix_op(name, json.dumps([[10, 4], [7, 7], [7, 7]]), json.dumps([BF16] * 3), None) is None


def test_a_causal_mask_halves_attention_and_its_backward_is_five_products() -> None:
    dims = [[2, 3, 8, 4]] * 3
    whole = op("_scaled_dot_product_flash_attention", dims, [BF16] * 3, ["", "", "", "0.", "False"])
    half = op("_scaled_dot_product_flash_attention", dims, [BF16] * 3, ["", "", "", "0.", "True"])
    back = op("_scaled_dot_product_flash_attention_backward", [[2, 3, 8, 4]] * 6, [BF16] * 6, [""] * 11 + ["True"])
    assert (whole.flops, half.flops, back.flops) == (6144, 3072, 2.5 * 3072)


Q, KV = [2, 8, 16, 4], [2, 8, 32, 4]
"""8 heads, 16 queries, 32 keys of width 4, batch 2."""
FORWARD = 2 * 8 * 16 * 32 * 2 * (4 + 4)
BACKWARD = 2 * 8 * 16 * 32 * 2 * (3 * 4 + 2 * 4)


@pytest.mark.parametrize(
    ("name", "lead", "causal_at", "whole"),
    [
        ("scaled_dot_product_attention", 0, 5, FORWARD),
        ("_scaled_dot_product_attention_math", 0, 5, FORWARD),
        ("_scaled_dot_product_flash_attention", 0, 4, FORWARD),
        ("_scaled_dot_product_flash_attention_for_cpu", 0, 4, FORWARD),
        ("_scaled_dot_product_efficient_attention", 0, 6, FORWARD),
        ("_scaled_dot_product_cudnn_attention", 0, 6, FORWARD),
        ("_scaled_dot_product_fused_attention_overrideable", 0, 5, FORWARD),
        ("_scaled_dot_product_flash_attention_backward", 1, 11, BACKWARD),
        ("_scaled_dot_product_flash_attention_for_cpu_backward", 1, 7, BACKWARD),
        ("_scaled_dot_product_efficient_attention_backward", 1, 11, BACKWARD),
        ("_scaled_dot_product_cudnn_attention_backward", 1, 14, BACKWARD),
    ],
)
def test_every_form_of_attention(name: str, lead: int, causal_at: int, whole: int) -> None:
    dims = [*[Q] * lead, Q, KV, KV]
    for causal, flops in (("False", whole), ("True", whole // 2)):
        found = op(name, dims, [BF16] * len(dims), [""] * causal_at + [causal])
        assert (found.kind, found.flops, found.groups, found.m, found.n) == ("attention", flops, 16, 16, 32)


def test_attention_with_heads_last_and_grouped_queries() -> None:
    """flash-attn's own operations: [batch, positions, heads, width], fewer heads of keys than of queries."""
    q, kv = [2, 16, 8, 4], [2, 32, 2, 4]
    forward = matrix_op("flash_attn::_flash_attn_forward", json.dumps([q, kv, kv]), json.dumps([BF16] * 3), None)
    back = matrix_op("flash_attn::_flash_attn_backward", json.dumps([q, q, kv, kv]), json.dumps([BF16] * 4), None)
    assert forward is not None
    assert back is not None
    assert (forward.flops, back.flops) == (FORWARD, BACKWARD)


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("aten::_int_mm", [[3, 5], [5, 7]]),
        ("aten::_addmm_activation", [[7], [3, 5], [5, 7]]),
        ("aten::addmm_", [[3, 7], [3, 5], [5, 7]]),
        ("aten::_scaled_mm_v2", [[3, 5], [5, 7], [], []]),
        ("deep_gemm::fp8_gemm_nt", [[3, 5], [3, 1], [7, 5], [1, 1], [3, 7]]),
        ("_C::cutlass_scaled_mm", [[3, 7], [3, 5], [5, 7], [3, 1], [1]]),
        ("sgl_kernel::fp8_scaled_mm", [[3, 5], [5, 7], [3, 1], [7, 1]]),
        ("aiter::gemm_a16w16", [[3, 5], [7, 5], []]),
        ("aiter::hipb_mm", [[3, 5], [5, 7]]),
        ("_Linear", [[7, 5], [1, 3, 5], [7]]),
        ("_LayerNormLinear", [[1, 3, 5], [5], [5], [7, 5], [7]]),
    ],
)
def test_single_products_of_every_library(name: str, dims: list[list[int]]) -> None:
    found = matrix_op(name, json.dumps(dims), json.dumps([F8] * len(dims)), None)
    assert found is not None
    assert (found.kind, found.flops, found.m, found.n, found.k) == ("gemm", 2 * 3 * 5 * 7, 3, 7, 5)
    assert matrix_op(f"{name}Backward", json.dumps(dims), json.dumps([F8] * len(dims)), None) is None


@pytest.mark.parametrize(
    "dims", [[[4, 4], [4, 4], [4, 8]], [[3, 5]], [[3, 5], [6, 7]], [[3, 5], [5, 7], [5, 9]]],
)  # fmt: skip
def test_arguments_that_could_mean_several_products_are_not_counted(dims: list[list[int]]) -> None:
    assert matrix_op("aiter::gemm_a16w16", json.dumps(dims), json.dumps([BF16] * len(dims)), None) is None


def test_convolutions() -> None:
    dims, types = [[10, 3, 224, 224], [64, 3, 7, 7], [], [], [], [], []], [BF16, BF16]
    first = op("conv2d", dims, types, ["", "", "", "[2, 2]", "[3, 3]", "[1, 1]", "1"])
    assert (first.m, first.n, first.k) == (10 * 112 * 112, 64, 147)
    assert first.flops == 2_360_279_040
    back = [[10, 64, 112, 112], [10, 3, 224, 224], [64, 3, 7, 7], *[[]] * 8]
    concrete = ["", "", "", "[0]", "[2, 2]", "[3, 3]", "[1, 1]", "False", "[0, 0]", "1", "[False, True, False]"]
    weight_only = op("convolution_backward", back, types, concrete)
    assert weight_only.flops == 2_360_279_040
    concrete[-1] = "[True, True, False]"
    both = op("convolution_backward", back, types, concrete)
    assert both.flops == 2 * 2_360_279_040


@pytest.mark.parametrize(
    ("name", "dims", "types"),
    [
        ("mm", [[3, 5], [6, 7]], [F32, F32]),
        ("mm", [[3, 5]], [F32]),
        ("mm", [[], []], [F32, F32]),
        ("mm", [[3, 5], [5, 7]], ["unknown", F32]),
        ("matmul", [[5], [3, 4, 7]], [F32, F32]),
        ("_grouped_mm", [[4, 10], [10, 6], []], [BF16, BF16]),
        ("conv2d", [[1, 3, 8, 8], [4, 3, 3, 3]], [F32, F32]),
        ("add", [[3, 5], [3, 5]], [F32, F32]),
    ],
)
def test_shapes_that_do_not_tell_are_not_counted(name: str, dims: object, types: list[str]) -> None:
    assert maybe(name, dims, types) is None


@given(st.lists(st.integers(1, 64), min_size=1, max_size=6), st.integers(1, 64), st.integers(1, 64))
def test_a_grouped_product_costs_what_its_single_products_cost(rows: list[int], k: int, n: int) -> None:
    grouped = op("_grouped_mm", [[sum(rows), k], [len(rows), k, n], [len(rows)]], [BF16, BF16, "int"])
    singles = [op("mm", [[m, k], [k, n]], [BF16, BF16]) for m in rows]
    assert grouped.flops == sum(single.flops for single in singles)
    assert grouped.bytes == sum(single.bytes for single in singles)


@pytest.mark.parametrize(
    ("kernel", "tile"),
    [
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT64x16x256_MI16x16x1_SN", (64, 16)),
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT", (192, 192)),
        ("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", (128, 256)),
        ("some_kernel", (128, 128)),
    ],
)
def test_tiles_by_kernel_name(kernel: str, tile: tuple[int, int]) -> None:
    assert tile_of(kernel) == tile
