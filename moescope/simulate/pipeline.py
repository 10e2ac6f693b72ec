"""The schedule of a pipeline's stages: one forward, one backward (Narayanan et al., SC 2021), as Megatron runs it.

A stage computes as many forward passes ahead as there are stages after it, then takes turns between forward and
backward, then finishes the backward passes. Between passes it exchanges an activation and a gradient with a neighbour
and waits for both to have left or come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from moescope.simulate.config import SimConfig
from moescope.simulate.layers import ITEM
from moescope.simulate.program import Join, Op, Transfer

Pass = Callable[[int], Iterator[Op]]
"""Operations of one microbatch's forward or backward pass."""


def one_forward_one_backward(config: SimConfig, stage: int, forward: Pass, backward: Pass) -> Iterator[Op]:
    """All operations of one stage from the first forward to the last backward pass."""
    count = config.microbatches
    ahead = min(config.pipeline - stage - 1, count)
    before, after = stage - 1, stage
    for index in range(ahead):
        yield from _exchange(config, stage, (before, index, False))
        yield from forward(index)
        yield from _exchange(config, stage, (after, index, False))
    if ahead < count:
        yield from _exchange(config, stage, (before, ahead, False))
    for index in range(count - ahead):
        yield from forward(ahead + index)
        yield from _exchange(config, stage, (after, ahead + index, False), (after, index, True))
        yield from backward(index)
        is_last = index == count - ahead - 1
        following = () if is_last else ((before, ahead + index + 1, False),)
        yield from _exchange(config, stage, *following, (before, index, True))
    for index in range(count - ahead, count):
        yield from _exchange(config, stage, (after, index, True))
        yield from backward(index)
        yield from _exchange(config, stage, (before, index, True))


def _exchange(config: SimConfig, stage: int, *messages: tuple[int, int, bool]) -> Iterator[Op]:
    """Launch this stage's side of messages (boundary, microbatch, gradient), then wait for all of them.

    The first stage has no boundary before it, the last none after it.
    """
    sides = [_side(config, stage, *message) for message in messages if 0 <= message[0] < config.pipeline - 1]
    yield from sides
    for side in sides:
        yield Join(name="c10d::wait_tensor", stage=stage, exchange=side)


def _side(config: SimConfig, stage: int, boundary: int, microbatch: int, gradient: bool) -> Transfer:
    sends = (stage == boundary) != gradient
    elements = config.tokens * config.model.hidden
    return Transfer(
        name="c10d::send" if sends else "c10d::recv_", stage=stage, sends=sends, boundary=boundary,
        microbatch=microbatch, gradient=gradient, elements=elements, num_bytes=elements * ITEM,
        layer=config.layers_of(boundary + 1)[0],
    )  # fmt: skip


def merge(stages: Sequence[Sequence[Op]]) -> Iterator[Op]:
    """The stages' operations in one order in which both sides of a message are launched before either waits for it."""
    launched: dict[tuple[int, int, bool], int] = {}
    at = [0] * len(stages)
    while any(position < len(ops) for position, ops in zip(at, stages, strict=True)):
        before = sum(at)
        for stage, ops in enumerate(stages):
            while at[stage] < len(ops) and not _must_wait(ops[at[stage]], launched):
                op = ops[at[stage]]
                if isinstance(op, Transfer):
                    launched[op.key] = launched.get(op.key, 0) + 1
                yield op
                at[stage] += 1
        if sum(at) == before:
            raise ValueError("the stages of the pipeline wait for each other")


def _must_wait(op: Op, launched: dict[tuple[int, int, bool], int]) -> bool:
    """Whether an operation needs a message that its other side has not launched yet."""
    return isinstance(op, Join) and isinstance(op.exchange, Transfer) and launched.get(op.exchange.key, 0) < 2
