"""Kernels of a decoder layer, forward and backward, as programs of :mod:`moescope.simulate.program`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moescope.simulate import cost
from moescope.simulate.config import SimConfig
from moescope.simulate.program import Exchange, Kernel, Op, ReadBack, Reduce, Span
from moescope.simulate.workload import Routing

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

BF16 = "c10::BFloat16"

GEMM = "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT"
GROUPED = ("void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass::gemm::kernel::GemmUniversal"
           "<cutlass::gemm::GroupProblemShape<cute::tuple<int, int, int> >, cutlass::gemm::collective::CollectiveMma"
           "<cutlass::gemm::MainloopSm90ArrayTmaGmmaWarpSpecialized<4> > > > >")
FLASH = ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, "
         "cutlass::bfloat16_t> >(pytorch_flash::Flash_fwd_params)")
FLASH_BACKWARD = ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<pytorch_flash::Flash_bwd_kernel_traits"
                  "<128, 64, 128, 8, 2, 4, 2, false, false, cutlass::bfloat16_t> >(pytorch_flash::Flash_bwd_params)")
ADD = ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
       "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)")
MUL = ("void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16, "
       "c10::BFloat16, at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul> >(int, ...)")
SILU = ("void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::silu_kernel"
        "(at::TensorIteratorBase&)::{lambda()#1}, std::array<char*, 2ul> >(int, ...)")
SILU_BACKWARD = ("void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::"
                 "silu_backward_kernel(at::TensorIteratorBase&)::{lambda()#1}, std::array<char*, 3ul> >(int, ...)")
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float, true>(int, float, ...)"
NORM_BACKWARD = "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<c10::BFloat16, float, true>(...)"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 6, false, false>(float*, float const*, int, int, int)"
SOFTMAX_BACKWARD = "void (anonymous namespace)::softmax_warp_backward<float, float, float, 6, false, false>(float*, float const*, ...)"
TOPK = "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(at::cuda::detail::TensorInfo<float const, unsigned int>, ...)"
HISTOGRAM = "void at::native::kernelHistogram1D<long, long, long, 1, 2, -1, at::native::CUDAHistogramMemoryType::SHARED>(...)"
SORT = "void at_cuda_detail::cub::detail::radix_sort::DeviceRadixSortOnesweepKernel<...>(...)"
GATHER = "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)"
INDEX_ADD = "void at::native::indexFuncLargeIndex<c10::BFloat16, long, unsigned int, 2, 2, -2, true, at::native::ReduceAdd>(...)"


@dataclass(frozen=True, slots=True)
class Microbatch:
    """What the layers of one microbatch need to know, over all scenarios."""

    config: SimConfig
    index: int
    routing: dict[int, list[Routing]]
    """By layer, one routing per scenario."""
    balanced: tuple[bool, ...]
    """Scenarios whose expert kernels run as if every rank received the mean."""

    def span(self, phase: str, layer: int | None, *, backward: bool = False) -> Span:
        return Span(phase, layer, self.index, backward)

    def kernel(self, span: Span, name: str, kernel: str, nanoseconds: float | FloatArray, *dims: tuple[int | str, ...],
               rows: IntArray | None = None) -> Kernel:
        """One compute kernel with bfloat16 inputs."""
        return Kernel(span, name, kernel, nanoseconds, dims, (BF16,) * len(dims), rows)

    def matmul(self, span: Span, m: int, n: int, k: int) -> Kernel:
        return self.kernel(span, "aten::mm", GEMM, cost.gemm_ns(m, n, k, self.config.device), (m, k), (k, n))

    def stream(self, span: Span, name: str, kernel: str, passes: float, width: int) -> Kernel:
        """A memory-bound kernel that reads or writes ``passes`` times [tokens, width]."""
        tokens = self.config.tokens
        moved = passes * tokens * width * cost.ITEM_BYTES
        return self.kernel(span, name, kernel, float(cost.memory_bound_ns(moved, self.config.device)), (tokens, width))


def attention(mb: Microbatch, layer: int) -> list[Op]:
    """Norm, projections, flash attention, residual."""
    span, tokens, hidden = mb.span("attention", layer), mb.config.tokens, mb.config.model.hidden
    flash = cost.attention_ns(tokens, mb.config.model.sequence, hidden, mb.config.device)
    return [
        mb.stream(span, "aten::_fused_rms_norm", NORM, 2, hidden),
        mb.matmul(span, tokens, 3 * hidden, hidden),
        mb.kernel(span, "aten::_flash_attention_forward", FLASH, flash, (tokens, hidden), (tokens, hidden), (tokens, hidden)),
        mb.matmul(span, tokens, hidden, hidden),
        mb.stream(span, "aten::add", ADD, 3, hidden),
    ]


def attention_backward(mb: Microbatch, layer: int) -> list[Op]:
    """Two products for each forward one; flash attention costs two and a half times its forward."""
    span, tokens, hidden = mb.span("attention", layer, backward=True), mb.config.tokens, mb.config.model.hidden
    flash = 2.5 * cost.attention_ns(tokens, mb.config.model.sequence, hidden, mb.config.device)
    return [
        mb.matmul(span, tokens, hidden, hidden),
        mb.matmul(span, hidden, hidden, tokens),
        mb.kernel(span, "aten::_flash_attention_backward", FLASH_BACKWARD, flash, (tokens, hidden), (tokens, hidden)),
        mb.matmul(span, tokens, hidden, 3 * hidden),
        mb.matmul(span, 3 * hidden, hidden, tokens),
        mb.stream(span, "aten::_fused_rms_norm_backward", NORM_BACKWARD, 4, hidden),
        mb.stream(span, "aten::add_", ADD, 3, hidden),
    ]


def dense(mb: Microbatch, layer: int) -> list[Op]:
    """A gated feed-forward block."""
    span, tokens, model = mb.span("dense", layer), mb.config.tokens, mb.config.model
    return [
        mb.matmul(span, tokens, 2 * model.dense_hidden, model.hidden),
        mb.stream(span, "aten::silu", SILU, 2, model.dense_hidden),
        mb.stream(span, "aten::mul", MUL, 3, model.dense_hidden),
        mb.matmul(span, tokens, model.hidden, model.dense_hidden),
    ]


def dense_backward(mb: Microbatch, layer: int) -> list[Op]:
    """Backward of :func:`dense`."""
    span, tokens, model = mb.span("dense", layer, backward=True), mb.config.tokens, mb.config.model
    return [
        mb.matmul(span, tokens, model.dense_hidden, model.hidden),
        mb.matmul(span, model.dense_hidden, model.hidden, tokens),
        mb.stream(span, "aten::mul", MUL, 5, model.dense_hidden),
        mb.stream(span, "aten::silu_backward", SILU_BACKWARD, 3, model.dense_hidden),
        mb.matmul(span, tokens, model.hidden, 2 * model.dense_hidden),
        mb.matmul(span, model.hidden, 2 * model.dense_hidden, tokens),
    ]


def moe(mb: Microbatch, layer: int) -> list[Op]:
    """Router, exchange of counts, dispatch, experts, combine."""
    config, model = mb.config, mb.config.model
    router, counts = mb.span("router", layer), mb.span("counts", layer)
    permute, unpermute = mb.span("permute", layer), mb.span("unpermute", layer)
    selections = model.top_k * model.hidden
    return [
        mb.stream(router, "aten::_fused_rms_norm", NORM, 2, model.hidden),
        mb.matmul(router, config.tokens, model.num_experts, model.hidden),
        mb.stream(router, "aten::_softmax", SOFTMAX, 4, model.num_experts),
        mb.stream(router, "aten::topk", TOPK, 8, model.num_experts),
        mb.stream(counts, "aten::histc", HISTOGRAM, 4, model.top_k),
        Reduce(counts, "c10d::alltoall_base_", "all_to_all", "ep", model.num_experts, "Long", 8),
        ReadBack(counts, "aten::copy_", 8 * 2 * config.ep),
        mb.stream(permute, "aten::sort", SORT, 16, model.top_k),
        mb.stream(permute, "aten::index", GATHER, 2, selections),
        exchange(mb, layer, "dispatch"),
        _per_row(mb, mb.span("permute", layer), layer, "aten::index", GATHER, 2 * model.hidden),
        *experts(mb, layer),
        _per_row(mb, mb.span("unpermute", layer), layer, "aten::index", GATHER, 2 * model.hidden),
        exchange(mb, layer, "combine"),
        mb.stream(unpermute, "aten::index_add_", INDEX_ADD, 2, selections),
        mb.stream(unpermute, "aten::add", ADD, 3, model.hidden),
    ]


def moe_backward(mb: Microbatch, layer: int) -> list[Op]:
    """Backward of :func:`moe`: gradients take the dispatch's way to the experts and the combine's way back."""
    model = mb.config.model
    router = mb.span("router", layer, backward=True)
    permute, unpermute = mb.span("permute", layer, backward=True), mb.span("unpermute", layer, backward=True)
    selections = model.top_k * model.hidden
    return [
        mb.stream(unpermute, "aten::index", GATHER, 2, selections),
        exchange(mb, layer, "combine", backward=True),
        _per_row(mb, unpermute, layer, "aten::index", GATHER, 2 * model.hidden),
        *experts_backward(mb, layer),
        _per_row(mb, permute, layer, "aten::index", GATHER, 2 * model.hidden),
        exchange(mb, layer, "dispatch", backward=True),
        mb.stream(permute, "aten::index_add_", INDEX_ADD, 2, selections),
        mb.stream(router, "aten::_softmax_backward_data", SOFTMAX_BACKWARD, 6, model.num_experts),
        mb.matmul(router, mb.config.tokens, model.hidden, model.num_experts),
        mb.matmul(router, model.num_experts, model.hidden, mb.config.tokens),
        mb.stream(router, "aten::_fused_rms_norm_backward", NORM_BACKWARD, 4, model.hidden),
    ]


def exchange(mb: Microbatch, layer: int, phase: str, *, backward: bool = False) -> Exchange:
    """Dispatch sends rows to the experts, combine sends them back; backward the other way round."""
    to_experts = (phase == "dispatch") != backward
    sent = np.stack([r.sent if to_experts else r.sent.swapaxes(1, 2) for r in mb.routing[layer]])
    hidden = mb.config.model.hidden
    return Exchange(mb.span(phase, layer, backward=backward), "c10d::alltoall_base_", sent, hidden * cost.ITEM_BYTES, hidden, phase)


def experts(mb: Microbatch, layer: int) -> list[Op]:
    """Two grouped products with a gate between."""
    model, span, rows = mb.config.model, mb.span("experts", layer), mb.routing[layer][0].received
    return [
        _grouped(mb, span, layer, model.hidden, 2 * model.expert_hidden),
        _per_row(mb, span, layer, "aten::silu", SILU, 2 * model.expert_hidden, rows),
        _per_row(mb, span, layer, "aten::mul", MUL, 3 * model.expert_hidden, rows),
        _grouped(mb, span, layer, model.expert_hidden, model.hidden),
    ]


def experts_backward(mb: Microbatch, layer: int) -> list[Op]:
    """Gradients of inputs and of weights for both grouped products."""
    model, span = mb.config.model, mb.span("experts", layer, backward=True)
    return [
        _grouped(mb, span, layer, model.hidden, model.expert_hidden),
        _grouped_weights(mb, span, layer, model.expert_hidden, model.hidden),
        _per_row(mb, span, layer, "aten::mul", MUL, 5 * model.expert_hidden),
        _per_row(mb, span, layer, "aten::silu_backward", SILU_BACKWARD, 3 * model.expert_hidden),
        _grouped(mb, span, layer, 2 * model.expert_hidden, model.hidden),
        _grouped_weights(mb, span, layer, model.hidden, 2 * model.expert_hidden),
    ]


def _held(mb: Microbatch, layer: int) -> list[IntArray]:
    """Rows per local expert, one array [ranks, local experts] per scenario; the mean where balance is assumed."""
    return [np.broadcast_to(np.rint(r.held.mean()).astype(np.int64), r.held.shape) if even else r.held
            for r, even in zip(mb.routing[layer], mb.balanced, strict=True)]


def _grouped(mb: Microbatch, span: Span, layer: int, k: int, n: int) -> Kernel:
    time = np.stack([cost.grouped_gemm_ns(rows, n, k, mb.config.device) for rows in _held(mb, layer)])
    local = mb.config.model.num_experts // mb.config.ep
    return Kernel(span, "aten::_grouped_mm", GROUPED, time, (("R", k), (local, k, n), (local,), (), ()),
                  (BF16, BF16, "int", "", ""), mb.routing[layer][0].received)


def _grouped_weights(mb: Microbatch, span: Span, layer: int, k: int, n: int) -> Kernel:
    time = np.stack([cost.grouped_weight_gemm_ns(rows, n, k, mb.config.device) for rows in _held(mb, layer)])
    local = mb.config.model.num_experts // mb.config.ep
    return Kernel(span, "aten::_grouped_mm", GROUPED, time, ((k, "R"), ("R", n), (local,), (), ()),
                  (BF16, BF16, "int", "", ""), mb.routing[layer][0].received)


def _per_row(mb: Microbatch, span: Span, layer: int, name: str, kernel: str, width: int,
             rows: IntArray | None = None) -> Kernel:
    """A memory-bound kernel over the rows that a rank received."""
    held = np.stack([h.sum(-1) for h in _held(mb, layer)])
    time = cost.memory_bound_ns(held * width * cost.ITEM_BYTES, mb.config.device)
    received = mb.routing[layer][0].received if rows is None else rows
    return mb.kernel(span, name, kernel, time, ("R", width), rows=received)
