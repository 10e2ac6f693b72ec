"""One training step, from the next batch to the optimizer, as a program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np
from moescope_hooks.names import RangeName

from moescope.simulate import cost, layers
from moescope.simulate import kernelnames as names
from moescope.simulate.config import SimConfig
from moescope.simulate.layers import Microbatch
from moescope.simulate.program import Copy, Exchange, HostWork, Join, Kernel, Op, Program, Reduce
from moescope.simulate.scenario import Scenario
from moescope.simulate.stalls import Stall
from moescope.simulate.workload import IntArray, Routing, route

_NEXT_BATCH_NS = 120_000.0
_STALLS = 5
NEXT_BATCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def build_step(config: SimConfig, scenarios: Sequence[Scenario], step: int) -> tuple[Program, list[Microbatch]]:
    """The step's program and its microbatches, over all scenarios."""
    microbatches = [_microbatch(config, scenarios, step, index) for index in range(config.microbatches)]
    loading: list[Op] = [
        HostWork(name=NEXT_BATCH, duration_ns=_NEXT_BATCH_NS),
        Copy(name="aten::copy_", num_bytes=8 * config.tokens * config.microbatches, to_host=False),
    ]
    passes = [op for pair in _in_flight(microbatches, 2 if config.overlap else 1) for op in _passes(pair)]
    program = Program([*loading, *passes, *_reduce(config), *_optimize(config)])
    _put_stalls(program, config, scenarios, step)
    return program, microbatches


def _microbatch(config: SimConfig, scenarios: Sequence[Scenario], step: int, index: int) -> Microbatch:
    routing: dict[int, list[Routing]] = {}
    held: dict[int, list[IntArray]] = {}
    split = config.split_experts(config.faults)
    for layer in config.model.moe_layers:
        routing[layer] = [route(config, s.faults, step, index, layer) for s in scenarios]
        held[layer] = []
        for scenario, drawn in zip(scenarios, routing[layer], strict=True):
            same = scenario.compute == scenario.faults
            computed = drawn if same else route(config, scenario.compute, step, index, layer)
            merge = split // config.split_experts(scenario.compute)
            held[layer].append(computed.held.reshape(config.ranks, -1, merge).sum(-1))
    return Microbatch(config, index, routing, held)


def _in_flight(microbatches: Sequence[Microbatch], together: int) -> Iterable[Sequence[Microbatch]]:
    return (microbatches[i : i + together] for i in range(0, len(microbatches), together))


def _passes(microbatches: Sequence[Microbatch]) -> Iterable[Op]:
    """Forward and backward of the microbatches that are in flight together."""
    if len(microbatches) == 1:
        yield from _forward(microbatches[0])
        yield from _backward(microbatches[0])
    else:
        yield from interleave([list(_forward(mb)) for mb in microbatches])
        yield from interleave([list(_backward(mb)) for mb in microbatches])


def interleave(programs: Sequence[Sequence[Op]]) -> Iterable[Op]:
    """Take turns at every exchange, so that one program computes while another's rows travel.

    Exchanges no longer block: each program waits for its own one when its turn has come again.
    """
    pending: list[Exchange | None] = [None] * len(programs)
    for turn in zip_longest(*(list(_segments(ops)) for ops in programs), fillvalue=([], None)):
        for index, (ops, exchange) in enumerate(turn):
            last = pending[index]
            if last is not None:
                yield Join(name="c10d::wait_tensor", span=ops[0].span, autograd=last.autograd, exchange=last)
            yield from ops
            pending[index] = None
            if exchange is not None:
                launched = replace(exchange, blocking=False)
                pending[index] = launched
                yield launched


def _segments(ops: Sequence[Op]) -> Iterable[tuple[list[Op], Exchange | None]]:
    """Cut a program after each exchange."""
    segment: list[Op] = []
    for op in ops:
        if isinstance(op, Exchange):
            yield segment, op
            segment = []
        else:
            segment.append(op)
    yield segment, None


def _forward(mb: Microbatch) -> Iterable[Op]:
    model, tokens = mb.config.model, mb.config.tokens
    for layer in range(model.num_layers):
        yield from layers.attention(mb, layer)
        if layer in model.moe_layers:
            yield from layers.moe_before(mb, layer)
            yield mb.exchange("dispatch", layer)
            yield from layers.moe_experts(mb, layer)
            yield mb.exchange("combine", layer)
            yield from layers.moe_after(mb, layer)
        else:
            yield from layers.dense(mb, layer)
    head = mb.span("head", None)
    yield mb.matmul(head, tokens, model.vocabulary, model.hidden)
    yield mb.stream(head, "aten::_log_softmax", names.SOFTMAX, 4, model.vocabulary)
    yield mb.stream(head, "aten::nll_loss_forward", names.LOSS, 1, 2)


def _backward(mb: Microbatch) -> Iterable[Op]:
    model, tokens, head = mb.config.model, mb.config.tokens, mb.span("head", None, backward=True)
    yield mb.stream(head, "aten::_log_softmax_backward_data", names.SOFTMAX_BACKWARD, 4, model.vocabulary)
    yield mb.matmul(head, tokens, model.hidden, model.vocabulary)
    yield mb.matmul(head, model.vocabulary, model.hidden, tokens, weight=True)
    for layer in reversed(range(model.num_layers)):
        if layer in model.moe_layers:
            yield from layers.moe_after_backward(mb, layer)
            yield mb.exchange("combine", layer, backward=True)
            yield from layers.moe_experts_backward(mb, layer)
            yield mb.exchange("dispatch", layer, backward=True)
            yield from layers.moe_before_backward(mb, layer)
        else:
            yield from layers.dense_backward(mb, layer)
        yield from layers.attention_backward(mb, layer)


def _reduce(config: SimConfig) -> Iterable[Op]:
    """Gradients of the dense part over all ranks, those of the experts over the ranks that hold the same ones."""
    span = RangeName("grad_reduce")
    groups = [("world", dense_parameters(config))]
    if config.ranks > config.ep:
        groups.append(("edp", expert_parameters(config)))
    for group, elements in groups:
        yield _all_reduce(span, group, elements, "BFloat16", 2)


def _all_reduce(span: RangeName, group: str, elements: int, dtype: str, item_bytes: int) -> Reduce:
    return Reduce(
        name="c10d::allreduce_", span=span, collective="allreduce", group=group, elements=elements, dtype=dtype,
        item_bytes=item_bytes,
    )  # fmt: skip


def _optimize(config: SimConfig) -> Iterable[Op]:
    span = RangeName("optimizer")
    parameters = dense_parameters(config) + expert_parameters(config)
    norm = float(cost.memory_bound_ns(2 * parameters, config.device))
    adam = float(cost.memory_bound_ns(28 * parameters / config.ranks, config.device))
    yield layers.kernel(span, "aten::_foreach_norm", names.GRADIENT_NORM, norm, (parameters,))
    yield _all_reduce(span, "world", 1, "Float", 4)
    for _ in range(4):
        yield layers.kernel(span, "aten::_fused_adamw_", names.ADAM, adam / 4, (parameters // 4,))
    yield Copy(name="aten::_local_scalar_dense", span=span, num_bytes=4, to_host=True)


def _put_stalls(program: Program, config: SimConfig, scenarios: Sequence[Scenario], step: int) -> None:
    """Insert every fault's pauses; a scenario without the fault has pauses of length 0 in the same places."""
    found: list[tuple[int, Op]] = []
    for index, fault in enumerate(config.faults):
        rng = np.random.default_rng([config.seed, _STALLS, index, step])
        for stall in fault.stalls(config.ranks, step, rng):
            present = np.array([[float(fault in s.faults)] for s in scenarios])
            if stall.site == "load":
                loading = program.ops[0]
                assert isinstance(loading, HostWork)
                program.ops[0] = replace(loading, duration_ns=loading.duration_ns + present * stall.duration_ns)
            else:
                found.append(_place(program, stall, present * stall.duration_ns))
    for position, op in sorted(found, key=lambda item: item[0], reverse=True):
        program.ops.insert(position, op)


def _place(program: Program, stall: Stall, duration: cost.FloatArray) -> tuple[int, Op]:
    """Where in the program a stall goes, and the operation that it is."""
    places = [i for i, op in enumerate(program.ops) if _fits(stall.site, op)]
    position = places[min(int(stall.at * len(places)), len(places) - 1)]
    neighbour = program.ops[position]
    name = "aten::empty" if stall.calls else ""
    return position, HostWork(
        name=name,
        span=neighbour.span,
        autograd=neighbour.autograd,
        duration_ns=duration,
        calls=stall.calls,
        inserted=True,
    )


def _fits(site: str, op: Op) -> bool:
    """Whether a stall of a site may come just before ``op``."""
    if not isinstance(op, Kernel) or op.span is None or op.span.layer is None or op.span.backward:
        return False
    return site == "forward" or (op.span.phase == "experts" and op.name == "aten::_grouped_mm")


def dense_parameters(config: SimConfig) -> int:
    """Parameters that every rank holds: embedding, head, attention, dense blocks, routers."""
    model = config.model
    per_layer = 4 * model.hidden**2 + model.hidden
    dense = model.num_dense_layers * 3 * model.hidden * model.dense_hidden
    routers = len(model.moe_layers) * model.hidden * config.num_experts
    return 2 * model.vocabulary * model.hidden + model.num_layers * per_layer + dense + routers


def expert_parameters(config: SimConfig) -> int:
    """Expert parameters on one rank."""
    model = config.model
    return len(model.moe_layers) * (config.num_experts // config.ep) * 3 * model.hidden * model.expert_hidden
