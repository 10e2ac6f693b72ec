"""One training step, from the next batch to the optimizer, as a program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np
from moescope_hooks.names import RangeName

from moescope.simulate import cost, layers
from moescope.simulate import kernelnames as names
from moescope.simulate.config import SimConfig
from moescope.simulate.layers import Microbatch
from moescope.simulate.pipeline import merge, one_forward_one_backward
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
    norm = _all_reduce(RangeName("optimizer"), "world", 1, "Float", 4)
    if config.pipeline > 1:
        parts = [_of_stage(config, microbatches, stage) for stage in range(config.pipeline)]
        program = Program([*loading, *merge([part[0] for part in parts]), norm, *merge([part[1] for part in parts])])
    else:
        passes = [op for pair in _in_flight(microbatches, 2 if config.overlap else 1) for op in _passes(pair)]
        program = Program([*loading, *passes, *_reduce(config), _norm(config), norm, *_optimize(config)])
    _put_stalls(program, config, scenarios, step)
    return program, microbatches


def _of_stage(config: SimConfig, microbatches: Sequence[Microbatch], stage: int) -> tuple[list[Op], list[Op]]:
    """What a stage does before and after the gradients' norm."""
    passes = one_forward_one_backward(
        config,
        stage,
        forward=lambda index: _placed(_forward(microbatches[index], stage), stage),
        backward=lambda index: _placed(_backward(microbatches[index], stage), stage),
    )
    before = [*passes, *_placed([*_reduce(config, stage), _norm(config, stage)], stage)]
    return before, list(_placed(_optimize(config, stage), stage))


def _placed(ops: Iterable[Op], stage: int) -> Iterator[Op]:
    return (replace(op, stage=stage) for op in ops)


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


def _forward(mb: Microbatch, stage: int | None = None) -> Iterable[Op]:
    model, tokens = mb.config.model, mb.config.tokens
    for layer in mb.config.layers_of(stage):
        yield from layers.attention(mb, layer)
        if layer in model.moe_layers:
            yield from layers.moe_before(mb, layer)
            yield mb.exchange("dispatch", layer)
            yield from layers.moe_experts(mb, layer)
            yield mb.exchange("combine", layer)
            yield from layers.moe_after(mb, layer)
        else:
            yield from layers.dense(mb, layer)
    if not _has_head(mb.config, stage):
        return
    head = mb.span("head", None)
    yield mb.matmul(head, tokens, model.vocabulary, model.hidden)
    yield mb.stream(head, "aten::_log_softmax", names.SOFTMAX, 4, model.vocabulary)
    yield mb.stream(head, "aten::nll_loss_forward", names.LOSS, 1, 2)


def _backward(mb: Microbatch, stage: int | None = None) -> Iterable[Op]:
    model, tokens, head = mb.config.model, mb.config.tokens, mb.span("head", None, backward=True)
    if _has_head(mb.config, stage):
        yield mb.stream(head, "aten::_log_softmax_backward_data", names.SOFTMAX_BACKWARD, 4, model.vocabulary)
        yield mb.matmul(head, tokens, model.hidden, model.vocabulary)
        yield mb.matmul(head, model.vocabulary, model.hidden, tokens, weight=True)
    for layer in reversed(mb.config.layers_of(stage)):
        if layer in model.moe_layers:
            yield from layers.moe_after_backward(mb, layer)
            yield mb.exchange("combine", layer, backward=True)
            yield from layers.moe_experts_backward(mb, layer)
            yield mb.exchange("dispatch", layer, backward=True)
            yield from layers.moe_before_backward(mb, layer)
        else:
            yield from layers.dense_backward(mb, layer)
        yield from layers.attention_backward(mb, layer)


def _has_head(config: SimConfig, stage: int | None) -> bool:
    return stage in {None, config.pipeline - 1}


def _reduce(config: SimConfig, stage: int | None = None) -> Iterable[Op]:
    """Gradients of the dense part over all ranks (of a stage), those of the experts over ranks with the same ones."""
    span = RangeName("grad_reduce")
    groups = [("world" if stage is None else "dp", dense_parameters(config, stage))]
    if config.stage_ranks > config.ep:
        groups.append(("edp", expert_parameters(config, stage)))
    for group, elements in groups:
        yield _all_reduce(span, group, elements, "BFloat16", 2)


def _all_reduce(span: RangeName, group: str, elements: int, dtype: str, item_bytes: int) -> Reduce:
    return Reduce(
        name="c10d::allreduce_", span=span, collective="allreduce", group=group, elements=elements, dtype=dtype,
        item_bytes=item_bytes,
    )  # fmt: skip


def _norm(config: SimConfig, stage: int | None = None) -> Op:
    """The norm of a rank's own gradients."""
    parameters = dense_parameters(config, stage) + expert_parameters(config, stage)
    norm = float(cost.memory_bound_ns(2 * parameters, config.device))
    return layers.kernel(RangeName("optimizer"), "aten::_foreach_norm", names.GRADIENT_NORM, norm, (parameters,))


def _optimize(config: SimConfig, stage: int | None = None) -> Iterable[Op]:
    span = RangeName("optimizer")
    parameters = dense_parameters(config, stage) + expert_parameters(config, stage)
    adam = float(cost.memory_bound_ns(28 * parameters / config.stage_ranks, config.device))
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
                continue
            for stage in range(config.pipeline):
                here = stall.duration_ns * (np.arange(config.ranks) // config.stage_ranks == stage)
                if here.any():
                    found.append(_place(program, stall, present * here, stage if config.pipeline > 1 else None))
    for position, op in sorted(found, key=lambda item: item[0], reverse=True):
        program.ops.insert(position, op)


def _place(program: Program, stall: Stall, duration: cost.FloatArray, stage: int | None) -> tuple[int, Op]:
    """Where in the program (of a stage) a stall goes, and the operation that it is."""
    places = [i for i, op in enumerate(program.ops) if op.stage == stage and _fits(stall.site, op)]
    places = places or [i for i, op in enumerate(program.ops) if op.stage == stage and _fits("forward", op)]
    position = places[min(int(stall.at * len(places)), len(places) - 1)]
    neighbour = program.ops[position]
    name = "aten::empty" if stall.calls else ""
    return position, HostWork(
        name=name,
        span=neighbour.span,
        autograd=neighbour.autograd,
        stage=stage,
        duration_ns=duration,
        calls=stall.calls,
        inserted=True,
    )


def _fits(site: str, op: Op) -> bool:
    """Whether a stall of a site may come just before ``op``."""
    if not isinstance(op, Kernel) or op.span is None or op.span.layer is None or op.span.backward:
        return False
    return site == "forward" or (op.span.phase == "experts" and op.name == "aten::_grouped_mm")


def dense_parameters(config: SimConfig, stage: int | None = None) -> int:
    """Parameters that every rank (of a stage) holds: attention, dense blocks, routers; embedding first, head last."""
    model, held = config.model, config.layers_of(stage)
    num_moe = _moe_layers(config, stage)
    per_layer = 4 * model.hidden**2 + model.hidden
    dense = (len(held) - num_moe) * 3 * model.hidden * model.dense_hidden
    routers = num_moe * model.hidden * config.num_experts
    tables = (stage in {None, 0}) + _has_head(config, stage)
    return tables * model.vocabulary * model.hidden + len(held) * per_layer + dense + routers


def _moe_layers(config: SimConfig, stage: int | None) -> int:
    return sum(layer in config.model.moe_layers for layer in config.layers_of(stage))


def expert_parameters(config: SimConfig, stage: int | None = None) -> int:
    """Expert parameters on one rank."""
    model = config.model
    return _moe_layers(config, stage) * (config.num_experts // config.ep) * 3 * model.hidden * model.expert_hidden
