"""Names of the kernels that torch 2.13 launches for these operations on an H100."""

from __future__ import annotations

GEMM = "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT"
GROUPED = (
    "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass::gemm::kernel::GemmUniversal"
    "<cutlass::gemm::GroupProblemShape<cute::tuple<int, int, int> >, cutlass::gemm::collective::CollectiveMma"
    "<cutlass::gemm::MainloopSm90ArrayTmaGmmaWarpSpecialized<4> > > > >"
)
FLASH = (
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, "
    "cutlass::bfloat16_t> >(pytorch_flash::Flash_fwd_params)"
)
FLASH_BACKWARD = (
    "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<pytorch_flash::Flash_bwd_kernel_traits"
    "<128, 64, 128, 8, 2, 4, 2, false, false, cutlass::bfloat16_t> >(pytorch_flash::Flash_bwd_params)"
)
_ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, "
ADD = _ELEMENTWISE + "at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul> >(int, ...)"
MUL = (
    _ELEMENTWISE + "at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, "
    "at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul> >(int, ...)"
)
SILU = (
    _ELEMENTWISE + "at::native::(anonymous namespace)::silu_kernel(at::TensorIteratorBase&)::{lambda()#1}, "
    "std::array<char*, 2ul> >(int, ...)"
)
SILU_BACKWARD = (
    _ELEMENTWISE + "at::native::(anonymous namespace)::silu_backward_kernel(at::TensorIteratorBase&)::{lambda()#1}, "
    "std::array<char*, 3ul> >(int, ...)"
)
_ANONYMOUS = "void at::native::(anonymous namespace)::"
NORM = _ANONYMOUS + "vectorized_layer_norm_kernel<c10::BFloat16, float, true>(int, float, ...)"
NORM_BACKWARD = _ANONYMOUS + "layer_norm_grad_input_kernel_vectorized<c10::BFloat16, float, true>(...)"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 6, false, false>(float*, ...)"
SOFTMAX_BACKWARD = (
    "void (anonymous namespace)::softmax_warp_backward<float, float, float, 6, false, false>(float*, ...)"
)
TOPK = "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(...)"
HISTOGRAM = "void at::native::kernelHistogram1D<long, long, long, 1, 2, -1, ...>(...)"
SORT = "void at_cuda_detail::cub::detail::radix_sort::DeviceRadixSortOnesweepKernel<...>(...)"
GATHER = "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)"
INDEX_ADD = "void at::native::indexFuncLargeIndex<c10::BFloat16, long, unsigned int, 2, 2, -2, true, ...>(...)"
LOSS = _ANONYMOUS + "nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(...)"
_MULTI = _ANONYMOUS + "multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<"
ADAM = _MULTI + "4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, ...> >(...)"
GRADIENT_NORM = _MULTI + "1>, at::native::LpNormFunctor<float, ...> >(...)"
_NCCL = "(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv" + _NCCL
ALL_REDUCE = {
    "BFloat16": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL" + _NCCL,
    "Float": "ncclDevKernel_AllReduce_Sum_f32_RING_LL" + _NCCL,
}
