"""Kernels of a decoder layer, forward and backward, as pieces of a :class:`moescope.simulate.program.Program`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from moescope_hooks.names import RangeName
from numpy.typing import NDArray

from moescope.simulate import cost
from moescope.simulate import kernelnames as names
from moescope.simulate.config import SimConfig
from moescope.simulate.program import Copy, Exchange, Kernel, Op, Reduce, Shape
from moescope.simulate.workload import Routing

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

BF16 = "c10::BFloat16"
ITEM = cost.ITEM_BYTES


@dataclass(frozen=True, slots=True)
class Microbatch:
    """What the layers of one microbatch need to know, over all scenarios."""

    config: SimConfig
    index: int
    routing: dict[int, list[Routing]]
    """By layer, one routing per scenario."""
    held: dict[int, list[IntArray]]
    """By layer and scenario, the rows of each product in the grouped kernels: [ranks, products]."""

    def span(self, phase: str, layer: int | None, *, backward: bool = False) -> RangeName:
        """The range that a phase is recorded under."""
        return RangeName(phase, layer, self.index, backward)

    def received(self, layer: int) -> IntArray:
        """Rows that each rank received in the run itself, [ranks]."""
        return self.routing[layer][0].received

    def matmul(self, span: RangeName, m: int, n: int, k: int, *, weight: bool = False) -> Kernel:
        """One product ``[m, k] x [k, n]``; a ``weight`` gradient goes into memory that exists already."""
        time = cost.gemm_ns(m, n, k, self.config.device)
        output = None if weight else (m, n * ITEM)
        return kernel(span, "aten::mm", names.GEMM, time, (m, k), (k, n), output=output)

    def stream(self, span: RangeName, name: str, kernel_name: str, passes: float, width: int) -> Kernel:
        """A memory-bound kernel that reads or writes ``passes`` times [tokens, width]."""
        tokens = self.config.tokens
        time = float(cost.memory_bound_ns(passes * tokens * width * ITEM, self.config.device))
        output = None if name.endswith("_") else (tokens, width * ITEM)
        return kernel(span, name, kernel_name, time, (tokens, width), output=output)

    def per_row(self, span: RangeName, name: str, kernel_name: str, passes: int, width: int) -> Kernel:
        """A memory-bound kernel over the rows that each rank received."""
        layer = _layer(span)
        rows = np.stack([held.sum(-1) for held in self.held[layer]])
        time = cost.memory_bound_ns(passes * rows * width * ITEM, self.config.device)
        output = ("R", width * ITEM)
        return kernel(span, name, kernel_name, time, ("R", width), rows=self.received(layer), output=output)

    def grouped(self, span: RangeName, k: int, n: int) -> Kernel:
        """All local experts' products ``[rows, k] x [k, n]`` in one kernel."""
        layer, local = _layer(span), self.config.num_experts // self.config.ep
        time = np.stack([cost.grouped_gemm_ns(rows, n, k, self.config.device) for rows in self.held[layer]])
        return Kernel(
            name="aten::_grouped_mm", span=span, autograd=span.backward, kernel=names.GROUPED, duration_ns=time,
            dims=(("R", k), (local, k, n), (local,), (), ()), types=(BF16, BF16, "int", "", ""),
            rows=self.received(layer), output=("R", n * ITEM), kept=not span.backward,
        )  # fmt: skip

    def grouped_weights(self, span: RangeName, k: int, n: int) -> Kernel:
        """All local experts' weight gradients ``[k, rows] x [rows, n]`` in one kernel."""
        layer, local = _layer(span), self.config.num_experts // self.config.ep
        time = np.stack([cost.grouped_weight_gemm_ns(rows, n, k, self.config.device) for rows in self.held[layer]])
        return Kernel(
            name="aten::_grouped_mm", span=span, autograd=span.backward, kernel=names.GROUPED, duration_ns=time,
            dims=((k, "R"), ("R", n), (local,), (), ()), types=(BF16, BF16, "int", "", ""), rows=self.received(layer),
        )  # fmt: skip

    def exchange(self, phase: str, layer: int, *, backward: bool = False) -> Exchange:
        """Dispatch sends rows to the experts, combine sends them back; gradients go the other way round."""
        to_experts = (phase == "dispatch") != backward
        sent = np.stack([r.sent if to_experts else r.sent.swapaxes(1, 2) for r in self.routing[layer]])
        if self.config.pipeline > 1:
            groups = sent.shape[1]
            stage = np.arange(groups) // (groups // self.config.pipeline)
            sent[:, stage != self.config.stage_of_layer(layer)] = 0
        hidden = self.config.model.hidden
        return Exchange(
            name="c10d::alltoall_base_", span=self.span(phase, layer, backward=backward), autograd=backward, sent=sent,
            row_elements=hidden, row_bytes=hidden * ITEM, kept=not backward,
        )  # fmt: skip


def kernel(
    span: RangeName,
    name: str,
    kernel_name: str,
    nanoseconds: float | FloatArray,
    *dims: Shape,
    rows: IntArray | None = None,
    output: tuple[int | str, int] | None = None,
) -> Kernel:
    """One compute kernel with bfloat16 inputs; what the forward pass writes is kept for the backward pass."""
    return Kernel(
        name=name, span=span, autograd=span.backward, kernel=kernel_name, duration_ns=nanoseconds, dims=dims,
        types=(BF16,) * len(dims), rows=rows, output=output, kept=not span.backward,
    )  # fmt: skip


def _layer(span: RangeName) -> int:
    if span.layer is None:
        raise ValueError(f"{span.phase} belongs to no layer")
    return span.layer


def attention(mb: Microbatch, layer: int) -> list[Op]:
    """Norm, projections, flash attention, residual."""
    span, tokens, hidden = mb.span("attention", layer), mb.config.tokens, mb.config.model.hidden
    flash = cost.attention_ns(tokens, mb.config.model.sequence, hidden, mb.config.device)
    return [
        mb.stream(span, "aten::_fused_rms_norm", names.NORM, 2, hidden),
        mb.matmul(span, tokens, 3 * hidden, hidden),
        kernel(span, "aten::_flash_attention_forward", names.FLASH, flash, *((tokens, hidden),) * 3,
               output=(tokens, hidden * ITEM)),
        mb.matmul(span, tokens, hidden, hidden),
        mb.stream(span, "aten::add", names.ADD, 3, hidden),
    ]  # fmt: skip


def attention_backward(mb: Microbatch, layer: int) -> list[Op]:
    """Two products for each forward one; flash attention takes two and a half times its forward time."""
    span, tokens, hidden = mb.span("attention", layer, backward=True), mb.config.tokens, mb.config.model.hidden
    flash = 2.5 * cost.attention_ns(tokens, mb.config.model.sequence, hidden, mb.config.device)
    return [
        mb.matmul(span, tokens, hidden, hidden),
        mb.matmul(span, hidden, hidden, tokens, weight=True),
        kernel(span, "aten::_flash_attention_backward", names.FLASH_BACKWARD, flash, *((tokens, hidden),) * 4,
               output=(tokens, 3 * hidden * ITEM)),
        mb.matmul(span, tokens, hidden, 3 * hidden),
        mb.matmul(span, 3 * hidden, hidden, tokens, weight=True),
        mb.stream(span, "aten::_fused_rms_norm_backward", names.NORM_BACKWARD, 4, hidden),
        mb.stream(span, "aten::add_", names.ADD, 3, hidden),
    ]  # fmt: skip


def dense(mb: Microbatch, layer: int) -> list[Op]:
    """A gated feed-forward block."""
    span, tokens, model = mb.span("dense", layer), mb.config.tokens, mb.config.model
    return [
        mb.matmul(span, tokens, 2 * model.dense_hidden, model.hidden),
        mb.stream(span, "aten::silu", names.SILU, 2, model.dense_hidden),
        mb.stream(span, "aten::mul", names.MUL, 3, model.dense_hidden),
        mb.matmul(span, tokens, model.hidden, model.dense_hidden),
    ]


def dense_backward(mb: Microbatch, layer: int) -> list[Op]:
    """Backward of :func:`dense`."""
    span, tokens, model = mb.span("dense", layer, backward=True), mb.config.tokens, mb.config.model
    return [
        mb.matmul(span, tokens, model.dense_hidden, model.hidden),
        mb.matmul(span, model.dense_hidden, model.hidden, tokens, weight=True),
        mb.stream(span, "aten::mul", names.MUL, 5, model.dense_hidden),
        mb.stream(span, "aten::silu_backward", names.SILU_BACKWARD, 3, model.dense_hidden),
        mb.matmul(span, tokens, model.hidden, 2 * model.dense_hidden),
        mb.matmul(span, model.hidden, 2 * model.dense_hidden, tokens, weight=True),
    ]


def moe_before(mb: Microbatch, layer: int) -> list[Op]:
    """Router, exchange of counts, rows put in the order of their experts: all up to the dispatch."""
    model = mb.config.model
    router, counts, permute = (mb.span(phase, layer) for phase in ("router", "counts", "permute"))
    return [
        mb.stream(router, "aten::_fused_rms_norm", names.NORM, 2, model.hidden),
        mb.matmul(router, mb.config.tokens, mb.config.num_experts, model.hidden),
        mb.stream(router, "aten::_softmax", names.SOFTMAX, 4, mb.config.num_experts),
        mb.stream(router, "aten::topk", names.TOPK, 8, mb.config.num_experts),
        mb.stream(counts, "aten::histc", names.HISTOGRAM, 4, model.top_k),
        Reduce(name="c10d::alltoall_base_", span=counts, collective="all_to_all", group="ep",
               elements=mb.config.num_experts, dtype="Long", item_bytes=8),
        Copy(name="aten::copy_", span=counts, num_bytes=16 * mb.config.ep, to_host=True),
        mb.stream(permute, "aten::sort", names.SORT, 16, model.top_k),
        mb.stream(permute, "aten::index", names.GATHER, 2, model.top_k * model.hidden),
    ]  # fmt: skip


def moe_experts(mb: Microbatch, layer: int) -> list[Op]:
    """What lies between dispatch and combine: two grouped products with a gate between."""
    model, span = mb.config.model, mb.span("experts", layer)
    return [
        mb.per_row(mb.span("permute", layer), "aten::index", names.GATHER, 2, model.hidden),
        mb.grouped(span, model.hidden, 2 * model.expert_hidden),
        mb.per_row(span, "aten::silu", names.SILU, 2, model.expert_hidden),
        mb.per_row(span, "aten::mul", names.MUL, 3, model.expert_hidden),
        mb.grouped(span, model.expert_hidden, model.hidden),
        mb.per_row(mb.span("unpermute", layer), "aten::index", names.GATHER, 2, model.hidden),
    ]


def moe_after(mb: Microbatch, layer: int) -> list[Op]:
    """Weighted sum of the experts' outputs, residual."""
    model, span = mb.config.model, mb.span("unpermute", layer)
    return [
        mb.stream(span, "aten::index_add_", names.INDEX_ADD, 2, model.top_k * model.hidden),
        mb.stream(span, "aten::add", names.ADD, 3, model.hidden),
    ]


def moe_after_backward(mb: Microbatch, layer: int) -> list[Op]:
    """Gradients spread to the selected experts' rows."""
    model, span = mb.config.model, mb.span("unpermute", layer, backward=True)
    return [mb.stream(span, "aten::index", names.GATHER, 2, model.top_k * model.hidden)]


def moe_experts_backward(mb: Microbatch, layer: int) -> list[Op]:
    """Gradients of inputs and of weights for both grouped products."""
    model, span = mb.config.model, mb.span("experts", layer, backward=True)
    permute, unpermute = (mb.span(phase, layer, backward=True) for phase in ("permute", "unpermute"))
    return [
        mb.per_row(unpermute, "aten::index", names.GATHER, 2, model.hidden),
        mb.grouped(span, model.hidden, model.expert_hidden),
        mb.grouped_weights(span, model.expert_hidden, model.hidden),
        mb.per_row(span, "aten::mul", names.MUL, 5, model.expert_hidden),
        mb.per_row(span, "aten::silu_backward", names.SILU_BACKWARD, 3, model.expert_hidden),
        mb.grouped(span, 2 * model.expert_hidden, model.hidden),
        mb.grouped_weights(span, model.hidden, 2 * model.expert_hidden),
        mb.per_row(permute, "aten::index", names.GATHER, 2, model.hidden),
    ]


def moe_before_backward(mb: Microbatch, layer: int) -> list[Op]:
    """Gradients gathered per token, through the router."""
    model = mb.config.model
    router, permute = (mb.span(phase, layer, backward=True) for phase in ("router", "permute"))
    return [
        mb.stream(permute, "aten::index_add_", names.INDEX_ADD, 2, model.top_k * model.hidden),
        mb.stream(router, "aten::_softmax_backward_data", names.SOFTMAX_BACKWARD, 6, mb.config.num_experts),
        mb.matmul(router, mb.config.tokens, model.hidden, mb.config.num_experts),
        mb.matmul(router, mb.config.num_experts, model.hidden, mb.config.tokens, weight=True),
        mb.stream(router, "aten::_fused_rms_norm_backward", names.NORM_BACKWARD, 4, model.hidden),
    ]
