"""The collectives of a step, each recorded in the trace and the telemetry under its phase and layer.

They go through torch's functional collectives: the operator itself then carries the splits and the group's name into
the trace, and ``wait_tensor`` shows how long the training thread was held up, on the CPU as on a GPU.

Shapes: N rows to send, R rows to receive, D columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from moescope_hooks.ranges import collective, microbatch_now
from torch import Tensor

from moescope.trainer.mesh import Group

_ops: Any = torch.ops._c10d_functional


@dataclass(frozen=True)
class Place:
    """What a collective belongs to."""

    phase: str
    layer: int | None
    microbatch: int | None
    backward: bool = False


@dataclass(frozen=True)
class Splits:
    """How many rows go to each member of a group, and how many come from it."""

    send: tuple[int, ...]
    recv: tuple[int, ...]

    def back(self) -> Splits:
        """The same rows on their way home."""
        return Splits(self.recv, self.send)


def exchange_counts(counts_me: Tensor, group: Group, layer: int) -> Tensor:
    """Tell every member how many rows it will get: ``counts_me[m]`` goes to member m; returns one row per sender."""
    if group.handle is None:
        return counts_me
    each = [counts_me.shape[1] * counts_me.element_size()] * group.size
    place = Place("counts", layer, microbatch_now())
    ones = (1,) * group.size
    with _recorded(place, group, each, each):
        return _all_to_all(counts_me.contiguous(), Splits(ones, ones), group)


def exchange_rows(x_ND: Tensor, splits: Splits, group: Group, phase: str, layer: int) -> Tensor:
    """Send consecutive rows to the members and receive theirs, [R, D]; differentiable."""
    if group.handle is None:
        return x_ND
    place = Place(phase, layer, microbatch_now())
    out: Tensor = _ExchangeRows.apply(x_ND, splits, group, place)  # type: ignore[no-untyped-call]
    return out


class _ExchangeRows(torch.autograd.Function):
    """An all-to-all with uneven splits, whose gradient is the all-to-all the other way round."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, splits: Splits, group: Group, place: Place) -> Tensor:
        ctx.arguments = (splits, group, place)
        return _exchange_recorded(x_ND, splits, group, place)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        splits, group, place = ctx.arguments
        back = Place(place.phase, place.layer, place.microbatch, backward=True)
        return _exchange_recorded(grads[0], splits.back(), group, back), None, None, None


def _exchange_recorded(x: Tensor, splits: Splits, group: Group, place: Place) -> Tensor:
    row_bytes = x.shape[1] * x.element_size()
    with _recorded(place, group, [n * row_bytes for n in splits.send], [n * row_bytes for n in splits.recv]):
        return _all_to_all(x.contiguous(), splits, group)


def _all_to_all(x: Tensor, splits: Splits, group: Group) -> Tensor:
    return wait(_ops.all_to_all_single(x, list(splits.recv), list(splits.send), group.name))


def _recorded(place: Place, group: Group, send_bytes: list[int], recv_bytes: list[int]) -> Any:
    return collective(
        place.phase,
        layer=place.layer,
        microbatch=place.microbatch,
        backward=place.backward,
        group=group.name,
        send_bytes=send_bytes,
        recv_bytes=recv_bytes,
    )


def wait(x: Tensor) -> Tensor:
    """Wait for the collective that fills ``x``."""
    out: Tensor = _ops.wait_tensor(x)
    return out


def sum_recorded(x: Tensor, group: Group, place: Place) -> Tensor:
    """The sum of ``x`` over the group, in place, recorded under ``place``."""
    if group.handle is None:
        return x
    size = [x.numel() * x.element_size()]
    with _recorded(place, group, size, size):
        return sum_over(x, group)


def start_sum(x: Tensor, group: Group) -> Tensor:
    """Start summing ``x`` over the group, in place; :func:`wait` for the result. Alone: ``x`` itself."""
    if group.handle is None:
        return x
    out: Tensor = _ops.all_reduce_(x, "sum", group.name)
    return out


def finish(x: Tensor, group: Group) -> Tensor:
    """Wait for what :func:`start_sum` gave."""
    return x if group.handle is None else wait(x)


def sum_over(x: Tensor, group: Group) -> Tensor:
    """The sum of ``x`` over the group, in place."""
    return finish(start_sum(x, group), group)
