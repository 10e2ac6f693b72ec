"""What kernels and operations are for, on names as profilers of many stacks record them."""

from __future__ import annotations

import pytest

from moescope.attribution.labels import (
    COMM_LABEL_OF_PART,
    COMMUNICATION,
    COMPUTE,
    IDLE,
    PARTS,
    Label,
    compute_label,
    compute_labels,
    refine,
)

NAMES = {
    Label.EXPERT_GEMM: [
        "void ck::kernel_moe_gemm<ck::GridwiseMoeGemm<ck::tensor_layout::gemm::RowMajor, 256>>(float*)",
        "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_tma_tmaOpt_clmp_swiGlu_dynBatch_sm100f",
        "bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_tmaOpt_clmp_dynBatch_sm100f",
        "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass::gemm::kernel::GemmUniversal<"
        "cutlass::gemm::GroupProblemShape<cute::tuple<int, int, int>>>>>(Params)",
        "_grouped_gemm_forward_kernel", "fused_moe_kernel", "aten::_grouped_mm",
    ],
    Label.ATTENTION: [
        "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext",
        "void paged_attention_ll4mi_QKV_mfma16_kernel<0, __hip_bfloat16>(__hip_bfloat16 const*)",
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128, 64>>(Flash_fwd_params)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x128x128",
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, unsigned char>(__nv_bfloat16 const*)",
        "aten::scaled_dot_product_attention", "aten::_flash_attention_backward",
        "void flashinfer::BatchDecodeWithPagedKVCacheKernel<2, 8>(Params)",
    ],
    Label.OTHER_GEMM: [
        "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_tn_align1>(Params)",
        "nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT", "volta_sgemm_128x32_nt",
        "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT64x16x256_MI16x16x1_SN", "aten::mm", "aten::linear",
        "void gemmSN_TN_kernel<float, 128, 16, 2, 4, 8, 9, false, cublasGemvTensorStridedBatched<float const>>(int)",
        "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int)", "volta_scudnn_128x128_stridedB_nn",
        "void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, false>(int)", "aten::convolution",
        "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8_ws1x1", "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n",
    ],
    Label.ROUTER: [
        "aiter::topksoftmax_4x128x8_bf16", "aten::topk",
        "void moe::dev::routing::routingIndicesHistogramKernel<moe::dev::routing::routingRenormalize::KernelParams>(P)",
        "void vllm::moe::topkGatingSoftmax<8, 128, 4, 16>(float const*)",
        "void transformer_engine::fused_router::fused_moe_aux_loss_forward_kernel<float, int>(float const*)",
        "void transformer_engine::fused_router::fused_topk_with_score_function_forward_kernel<float>(float const*)",
    ],
    Label.PERMUTE: [
        "void ck_tile::kentry<2, ck_tile::MoeSortingKernel<ck_tile::MoeSortingProblemEx<int, float>>>(Hargs)",
        "void moe::dev::finalize::finalizeKernelVecLoad<moe::dev::finalize::KernelParams<cutlass::bfloat16_t>>(P)",
        "_permute_kernel", "_unpermute_kernel", "_row_id_map_pass_1_kernel", "_sort_chunks_by_map_kernel",
        "void cub::DeviceRadixSortSingleTileKernel<cub::DeviceRadixSortPolicy<long, int, int>::Policy800>(long const*)",
        "void at::native::(anonymous namespace)::indexSelectSmallIndex<c10::BFloat16, long, unsigned int, 2, 2, -2>(T)",
        "void at::native::index_elementwise_kernel<128, 4, at::native::index_kernel_impl<T>>",
        "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*)", "aten::index", "aten::index_add_",
        "void moe_align_block_size_kernel<int>(int const*)", "aten::embedding",
    ],
    Label.OPTIMIZER: [
        "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float>(int, int volatile*)",
        "aten::_fused_adamw_", "aten::_foreach_add_",
        "void split_embedding_backward_codegen_adagrad_unweighted_kernel_cta_per_row_1<float, float>(T)",
    ],
    Label.ELEMENTWISE: [
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int, T)",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::sum_functor<float>>>(T)",
        "std::enable_if<(8)>(0)&&vllm::_typeConvert<c10::BFloat16>::exists>::type vllm::fused_add_rms_norm_kernel<T>",
        "triton_poi_fused_add_bitwise_and_bitwise_not_bitwise_or_ge_lt_mul_sub_0", "triton__0d1d2d3d4d5d6d",
        "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi8ELb1ELb0ELb1ELi1EEE", "aten::add_", "aten::copy_",
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long*)", "_fused_qk_rope_reshape_and_cache_kernel",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(T)",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>(float*)",
    ],
    Label.OTHER: [
        "void tensorrt_llm::kernels::quantize_with_block_size<T, 32, true>(int, flashinfer::QuantizationSFLayout)",
        "void fbgemm_gpu::_block_bucketize_sparse_features_cuda_kernel1<int, int>(int, int, int const*)",
        "void bounds_check_indices_kernel<long, false>(T, long, fbgemm_gpu::FixedDivisor)",
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
        "batched_transpose_16x32_half", "autograd::engine::evaluate_function: MmBackward0", "my_custom_kernel", "",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("label", "name"), [(label, name) for label, names in NAMES.items() for name in names])
def test_class_of_a_name(label: Label, name: str) -> None:
    assert compute_label(name) is label


def test_classes_of_many_names_are_those_of_each() -> None:
    assert compute_labels(["aten::mm", "aten::mm", "x"]) == {"aten::mm": Label.OTHER_GEMM, "x": Label.OTHER}


@pytest.mark.parametrize(
    ("own", "operation", "phase", "final"),
    [
        (Label.OTHER_GEMM, None, "experts", Label.EXPERT_GEMM),  # a loop of small products over the experts
        (Label.ELEMENTWISE, None, "experts", Label.ELEMENTWISE),  # the activation between them
        (Label.OTHER, Label.EXPERT_GEMM, "experts", Label.EXPERT_GEMM),  # a kernel with a meaningless name
        (Label.ELEMENTWISE, None, "router", Label.ROUTER),
        (Label.OTHER_GEMM, None, "router", Label.ROUTER),
        (Label.ELEMENTWISE, None, "dispatch", Label.PERMUTE),
        (Label.OTHER_GEMM, None, "attention", Label.ATTENTION),  # the projections belong to it
        (Label.ELEMENTWISE, None, "optimizer", Label.OPTIMIZER),
        (Label.OTHER, Label.ATTENTION, None, Label.ATTENTION),
        (Label.OTHER, Label.EXPERT_GEMM, None, Label.EXPERT_GEMM),
        (Label.ELEMENTWISE, Label.OTHER_GEMM, None, Label.ELEMENTWISE),  # a bias added by a linear
        (Label.OTHER_GEMM, None, "shared", Label.OTHER_GEMM),
        (Label.OTHER_GEMM, None, "dense", Label.OTHER_GEMM),
        (Label.OTHER_GEMM, None, None, Label.OTHER_GEMM),
    ],
)
def test_the_phase_and_the_operation_refine_a_class(
    own: Label, operation: Label | None, phase: str | None, final: Label
) -> None:
    assert refine(own, operation, phase) == final


def test_every_label_has_its_parts_and_every_part_its_place() -> None:
    assert sorted([*COMPUTE, *COMMUNICATION, Label.COMM_WAIT, Label.COPY, Label.ALLOCATOR, *IDLE]) == list(Label)
    assert len(PARTS) == len(set(PARTS)) == len(COMPUTE) + 3 * len(COMMUNICATION) + 2 + len(IDLE)
    assert set(COMM_LABEL_OF_PART.values()) == set(COMMUNICATION)


def test_compute_comes_before_communication_before_copies_before_idle() -> None:
    """The sweep gives a moment to the smallest label."""
    assert max(COMPUTE) < min(COMMUNICATION) < max(COMMUNICATION) < Label.COMM_WAIT < Label.COPY < min(IDLE)
