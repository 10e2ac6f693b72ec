"""The collectives of a step, each recorded in the trace and the telemetry under its phase and layer.

They go through torch's functional collectives: the operator itself then carries the splits and the group's name into
the trace, and ``wait_tensor`` shows how long the training thread was held up, on the CPU as on a GPU.

Shapes: N rows to send, R rows to receive, D columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from moescope_hooks.ranges import collective, microbatch_now, phase_range, start_collective
from torch import Tensor

from moescope.trainer.mesh import Group
from moescope.trainer.overlap import Steps

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


def exchange_rows(
    x_ND: Tensor, splits: Splits, group: Group, phase: str, layer: int, *, overlapped: bool = False
) -> Steps[Tensor]:
    """Send consecutive rows to the members and receive theirs, [R, D]; differentiable.

    With ``overlapped`` the computation stops once while the rows are under way.
    """
    if group.handle is None:
        return x_ND
    exchange = _Exchange(splits, group, Place(phase, layer, microbatch_now()))
    out: Tensor
    if not overlapped:
        out = _ExchangeRows.apply(x_ND, exchange)  # type: ignore[no-untyped-call]
        return out
    token = _SendRows.apply(x_ND, exchange)  # type: ignore[no-untyped-call]
    yield
    out = _ReceiveRows.apply(token, exchange)  # type: ignore[no-untyped-call]
    return out


class _Exchange:
    """An all-to-all with uneven splits and its gradient, the all-to-all the other way round."""

    def __init__(self, splits: Splits, group: Group, place: Place) -> None:
        self._ways = {
            False: (splits, place),
            True: (splits.back(), Place(place.phase, place.layer, place.microbatch, backward=True)),
        }
        self._group = group
        self._under_way: tuple[Tensor, Callable[[], None]] | None = None

    def whole(self, x: Tensor, *, backward: bool) -> Tensor:
        """Send and receive."""
        splits, place = self._ways[backward]
        with _recorded(place, self._group, *_sizes(x, splits)):
            return _all_to_all(x.contiguous(), splits, self._group)

    def send(self, x: Tensor, *, backward: bool) -> None:
        """Start what :meth:`receive` waits for."""
        splits, place = self._ways[backward]
        with _end_of(place):
            send_bytes, recv_bytes = _sizes(x, splits)
            recorded = start_collective(
                place.phase,
                group=self._group.name,
                send_bytes=send_bytes,
                recv_bytes=recv_bytes,
                layer=place.layer,
                microbatch=place.microbatch,
                backward=backward,
            )
            self._under_way = _start_all_to_all(x.contiguous(), splits, self._group), recorded

    def receive(self, *, backward: bool) -> Tensor:
        """The rows, once they are there."""
        if self._under_way is None:
            raise RuntimeError("nothing was sent")
        (sent, recorded), self._under_way = self._under_way, None
        with _end_of(self._ways[backward][1]):
            out = wait(sent)
            recorded()
            return out


def _end_of(place: Place) -> Any:
    return phase_range(place.phase, layer=place.layer, microbatch=place.microbatch, backward=place.backward)


def _sizes(x: Tensor, splits: Splits) -> tuple[list[int], list[int]]:
    row_bytes = x.shape[1] * x.element_size()
    return [n * row_bytes for n in splits.send], [n * row_bytes for n in splits.recv]


class _ExchangeRows(torch.autograd.Function):
    """An exchange at once, in both directions."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, exchange: _Exchange) -> Tensor:
        ctx.exchange = exchange
        return exchange.whole(x_ND, backward=False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return ctx.exchange.whole(grads[0], backward=True), None


class _SendRows(torch.autograd.Function):
    """The first end of an exchange; in the backward pass the last one.

    The rows travel inside of the exchange. What autograd sees between the two ends is a token of no size.
    """

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, exchange: _Exchange) -> Tensor:
        ctx.exchange = exchange
        exchange.send(x_ND, backward=False)
        return x_ND.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        del grads
        return ctx.exchange.receive(backward=True), None


class _ReceiveRows(torch.autograd.Function):
    """The last end of an exchange; in the backward pass the first one."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, exchange: _Exchange) -> Tensor:
        ctx.exchange = exchange
        ctx.token = token
        return exchange.receive(backward=False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        ctx.exchange.send(grads[0], backward=True)
        return torch.zeros_like(ctx.token), None


def _all_to_all(x: Tensor, splits: Splits, group: Group) -> Tensor:
    return wait(_start_all_to_all(x, splits, group))


def _start_all_to_all(x: Tensor, splits: Splits, group: Group) -> Tensor:
    out: Tensor = _ops.all_to_all_single(x, list(splits.recv), list(splits.send), group.name)
    return out


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
