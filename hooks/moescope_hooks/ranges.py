"""Ranges in the trace and rows in the telemetry, from inside a model.

Both are free while nobody observes: :func:`traced` calls straight through unless a trace is being recorded, and
:func:`collective` does nothing unless an observation is active.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd.profiler import record_function

from moescope_hooks.names import RangeName, range_name
from moescope_hooks.steprecord import Collective

if TYPE_CHECKING:
    from moescope_hooks.observation import Observation

P = ParamSpec("P")
R = TypeVar("R")


class _Active:
    """The observation of this process, if any."""

    observation: Observation | None = None


def set_active(observation: Observation | None) -> None:
    """Make ``observation`` the one that :func:`traced` and :func:`collective` report to."""
    _Active.observation = observation


def active() -> Observation | None:
    """The observation of this process, or None."""
    return _Active.observation


def in_backward() -> bool:
    """Whether this thread is inside a backward pass, where a forward region runs only to be recomputed."""
    return bool(torch._C._current_graph_task_id() != -1)


class _BackwardRange:
    """The backward range of one forward region: opened by its exit marker, closed by its entry marker."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._range: record_function | None = None

    def open(self) -> None:
        """Start the range if a trace is still being recorded."""
        observation = active()
        if self._range is None and observation is not None and observation.tracing:
            self._range = record_function(self.name)
            self._range.__enter__()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """End the range if it was started."""
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._range = None


class _Marker(torch.autograd.Function):
    """The identity, whose backward opens or closes a range."""

    @staticmethod
    def forward(ctx: Any, on_backward: Callable[[], None], *tensors: Tensor) -> Any:
        """Return views of ``tensors``."""
        ctx.on_backward = on_backward
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        """Open or close the range and pass the gradients on."""
        ctx.on_backward()
        return (None, *grads)


def _mark(on_backward: Callable[[], None], values: Sequence[Any]) -> tuple[Any, ...]:
    """Pass the tensors of ``values`` that need a gradient through one marker."""
    places = [i for i, v in enumerate(values) if isinstance(v, Tensor) and v.requires_grad]
    if not places:
        return tuple(values)
    marked = _Marker.apply(on_backward, *[values[i] for i in places])  # type: ignore[no-untyped-call]
    out = list(values)
    for i, tensor in zip(places, marked, strict=True):
        out[i] = tensor
    return tuple(out)


def traced(phase: str, layer: int | None, region: Callable[..., R], *args: Any) -> R:
    """``region(*args)``, inside the range of ``phase`` while a trace is recorded, with its backward pass likewise.

    ``region`` takes its differentiable inputs as positional tensors and returns a tensor or a tuple. The graph
    executes in reverse order of its creation, so markers around the region enclose exactly its backward pass.
    """
    observation = active()
    if observation is None or not observation.tracing or torch.compiler.is_compiling():
        return region(*args)
    microbatch = observation.current_microbatch
    recompute = in_backward()
    backward = _BackwardRange(range_name(RangeName(phase, layer, microbatch, backward=True)))
    with record_function(range_name(RangeName(phase, layer, microbatch, recompute=recompute))):
        if not torch.is_grad_enabled():
            return region(*args)
        result = region(*_mark(backward.close, args))
        outputs = result if isinstance(result, tuple) else (result,)
        marked = _mark(backward.open, outputs)
    return cast(R, marked if isinstance(result, tuple) else marked[0])


@contextmanager
def phase_range(phase: str) -> Iterator[None]:
    """A range without layer, for what happens once per step: grad_reduce, optimizer."""
    observation = active()
    with record_function(range_name(RangeName(phase))) if observation and observation.tracing else nullcontext():
        yield


def microbatch_now() -> int | None:
    """The microbatch being trained on, to be given to :func:`collective` when its backward pass runs."""
    observation = active()
    return None if observation is None else observation.current_microbatch


@contextmanager
def collective(
    phase: str,
    *,
    layer: int | None,
    group: str,
    send_bytes: Sequence[int],
    recv_bytes: Sequence[int],
    microbatch: int | None = None,
    backward: bool = False,
) -> Iterator[None]:
    """Record the collective issued and waited for inside, as a range and a row of the ``collective`` table."""
    observation = active()
    if observation is None:
        yield
        return
    name = RangeName(phase, layer, microbatch, backward=backward, recompute=not backward and in_backward())
    with record_function(range_name(name)) if observation.tracing else nullcontext():
        finish = _started(observation, Collective(name, group, send_bytes, recv_bytes))
        yield
        finish()


def start_collective(
    phase: str, *, group: str, send_bytes: Sequence[int], recv_bytes: Sequence[int]
) -> Callable[[], None]:
    """Note that a collective without layer is issued now; call the result when it has been waited for."""
    observation = active()
    if observation is None:
        return lambda: None
    return _started(observation, Collective(RangeName(phase), group, send_bytes, recv_bytes))


def _started(observation: Observation, collective: Collective) -> Callable[[], None]:
    arrival = observation.stamp()
    return lambda: observation.add_collective(collective, arrival)
