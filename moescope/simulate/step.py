"""One training step from data loading to the optimizer."""

from __future__ import annotations

from moescope.simulate import cost, layers
from moescope.simulate.config import SimConfig
from moescope.simulate.layers import Microbatch
from moescope.simulate.program import HostWork, Program, ReadBack, Reduce, Span, Upload
from moescope.simulate.scenario import Scenario
from moescope.simulate.workload import route

ADAM = ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
        "TensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, ...> >(...)")
NORM_OF_GRADIENTS = ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
                     "TensorListMetadata<1>, at::native::LpNormFunctor<float, ...> >(...)")
LOSS = "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(...)"

_NEXT_BATCH_NS = 120_000.0


def build_step(config: SimConfig, scenarios: tuple[Scenario, ...], step: int) -> tuple[Program, list[Microbatch]]:
    """The step's program and the routing behind it, over all scenarios."""
    program = Program()
    loading = [HostWork(None, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", _NEXT_BATCH_NS),
               Upload(None, "aten::copy_", 8 * config.tokens * config.microbatches)]
    program.add(*loading)
    microbatches = [_microbatch(config, scenarios, step, index) for index in range(config.microbatches)]
    for mb in microbatches:
        _forward(program, mb)
        _backward(program, mb)
    _reduce(program, config)
    _optimize(program, config)
    return program, microbatches


def _microbatch(config: SimConfig, scenarios: tuple[Scenario, ...], step: int, index: int) -> Microbatch:
    routing = {layer: [route(config, s.faults, step, index, layer) for s in scenarios] for layer in config.model.moe_layers}
    return Microbatch(config, index, routing, tuple(s.even_compute for s in scenarios))


def _forward(program: Program, mb: Microbatch) -> None:
    model = mb.config.model
    for layer in range(model.num_layers):
        program.add(*layers.attention(mb, layer))
        program.add(*(layers.moe(mb, layer) if layer in model.moe_layers else layers.dense(mb, layer)))
    head = mb.span("head", None)
    program.add(mb.matmul(head, mb.config.tokens, model.vocabulary, model.hidden),
                mb.stream(head, "aten::_log_softmax", layers.SOFTMAX, 4, model.vocabulary),
                mb.stream(head, "aten::nll_loss_forward", LOSS, 1, 2))


def _backward(program: Program, mb: Microbatch) -> None:
    model, head = mb.config.model, mb.span("head", None, backward=True)
    program.add(mb.stream(head, "aten::_log_softmax_backward_data", layers.SOFTMAX_BACKWARD, 4, model.vocabulary),
                mb.matmul(head, mb.config.tokens, model.hidden, model.vocabulary),
                mb.matmul(head, model.vocabulary, model.hidden, mb.config.tokens), autograd=True)
    for layer in reversed(range(model.num_layers)):
        block = layers.moe_backward if layer in model.moe_layers else layers.dense_backward
        program.add(*block(mb, layer), *layers.attention_backward(mb, layer), autograd=True)


def _reduce(program: Program, config: SimConfig) -> None:
    """Gradients of the dense part over all ranks; of the experts over the ranks that hold the same ones."""
    span = Span("grad_reduce")
    program.add(Reduce(span, "c10d::allreduce_", "allreduce", "world", dense_parameters(config), "BFloat16", 2))
    if config.ranks > config.ep:
        program.add(Reduce(span, "c10d::allreduce_", "allreduce", "edp", expert_parameters(config), "BFloat16", 2))


def _optimize(program: Program, config: SimConfig) -> None:
    span = Span("optimizer")
    parameters = dense_parameters(config) + expert_parameters(config)
    even = Microbatch(config, 0, {}, ())
    norm = float(cost.memory_bound_ns(parameters * 2, config.device))
    adam = float(cost.memory_bound_ns(parameters * 28 / config.ranks, config.device))
    program.add(even.kernel(span, "aten::_foreach_norm", NORM_OF_GRADIENTS, norm, (parameters,)),
                Reduce(span, "c10d::allreduce_", "allreduce", "world", 1, "Float", 4),
                *(even.kernel(span, "aten::_fused_adamw_", ADAM, adam / 4, (parameters // 4,)) for _ in range(4)),
                ReadBack(span, "aten::_local_scalar_dense", 4))


def dense_parameters(config: SimConfig) -> int:
    """Parameters that every rank holds: embedding, head, attention, dense blocks, routers."""
    model = config.model
    per_layer = 4 * model.hidden**2 + model.hidden
    dense = model.num_dense_layers * 3 * model.hidden * model.dense_hidden
    routers = len(model.moe_layers) * model.hidden * model.num_experts
    return 2 * model.vocabulary * model.hidden + model.num_layers * per_layer + dense + routers


def expert_parameters(config: SimConfig) -> int:
    """Expert parameters on one rank."""
    model = config.model
    return len(model.moe_layers) * (model.num_experts // config.ep) * 3 * model.hidden * model.expert_hidden
