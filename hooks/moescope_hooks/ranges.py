"""Ranges in the trace and rows in the telemetry, from inside a model.

Both are free while nobody observes: :func:`traced` calls straight through unless a trace is being recorded, and
:func:`collective` does nothing unless an observation is active. What goes wrong in here costs a range, never the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd.profiler import record_function

from moescope_hooks.active import Recorder, active
from moescope_hooks.blocks import Collective
from moescope_hooks.names import RangeName, range_name

R = TypeVar("R")
_ENTER: Any = getattr(torch.autograd, "_record_function_with_args_enter", None)
_EXIT: Any = getattr(torch.autograd, "_record_function_with_args_exit", None)


def in_backward() -> bool:
    """Whether this thread is inside a backward pass, where a forward region runs only to be recomputed."""
    return bool(torch._C._current_graph_task_id() != -1)


def enter(name: str) -> Callable[[], object]:
    """Begin a range of the profiler's; the result ends it.

    As :class:`record_function` does in the end, which goes through the dispatcher first and takes four times as long.
    """
    if _ENTER is not None and _EXIT is not None:
        return partial(_EXIT, _ENTER(name))
    entered = record_function(name)
    entered.__enter__()  # type: ignore[no-untyped-call]
    return partial(entered.__exit__, None, None, None)


@lru_cache(maxsize=1 << 14)
def names_of(phase: str, layer: int | None, microbatch: int | None, recompute: bool) -> tuple[str, str]:
    """What a region's ranges are called, in the forward pass and in the backward pass."""
    forward = RangeName(phase, layer, microbatch, recompute=recompute)
    return range_name(forward), range_name(RangeName(phase, layer, microbatch, backward=True))


class _Range:
    """One range of the trace; opens only while one is recorded. That of a backward pass is opened by its forward
    region's exit marker and closed by its entry marker, which give it gradients that it does not need."""

    __slots__ = ("_leave", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._leave: Callable[[], object] | None = None

    def open(self, _: object = None) -> None:
        """Start the range if a trace is being recorded."""
        recorder = active()
        if self._leave is not None or recorder is None or not recorder.tracing:
            return
        try:
            self._leave = enter(self.name)
        except Exception as error:  # a profiler in disorder must not end the training
            recorder.lost("a range", error)

    def close(self, _: object = None) -> None:
        """End the range if it was started."""
        leave, self._leave = self._leave, None
        if leave is None:
            return
        try:
            leave()
        except Exception as error:
            if (recorder := active()) is not None:
                recorder.lost("a range", error)

    @contextmanager
    def around(self) -> Iterator[None]:
        """Around a block."""
        self.open()
        try:
            yield
        finally:
            self.close()


class _Marker(torch.autograd.Function):
    """The identity of several tensors, whose backward waits for all their gradients and opens or closes a range."""

    @staticmethod
    def forward(ctx: Any, on_backward: Callable[[], None], *tensors: Tensor) -> Any:
        """Return views of ``tensors``."""
        ctx.on_backward = on_backward
        return tuple(t[...] for t in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        """Open or close the range and pass the gradients on."""
        ctx.on_backward()
        return (None, *grads)


def _mark(on_backward: Callable[..., None], values: tuple[Any, ...], *, own: bool = False) -> tuple[Any, ...]:
    """Pass the tensors of ``values`` that need a gradient through one marker; an alias with a hook is one for one.

    ``own``: the tensors were made by the region itself, so that a hook on a single one needs no alias. A profiler
    records whatever a marker does, and takes its time for that: an alias costs three events, a view six.
    """
    places = [i for i, v in enumerate(values) if isinstance(v, Tensor) and v.requires_grad]
    if not places:
        return values
    try:
        if len(places) == 1:
            tensor = values[places[0]]
            if not own or tensor.is_leaf:
                tensor = tensor[...]
            tensor.register_hook(on_backward)
            marked: Any = (tensor,)
        else:
            marked = _Marker.apply(on_backward, *(values[i] for i in places))  # type: ignore[no-untyped-call]
    except Exception as error:  # a tensor that has no aliases, for one
        if (recorder := active()) is not None:
            recorder.lost("a backward range", error)
        return values
    if len(values) == 1:
        return tuple(marked)
    out = list(values)
    for i, tensor in zip(places, marked, strict=True):
        out[i] = tensor
    return tuple(out)


def traced(phase: str, layer: int | None, region: Callable[..., R], *args: Any) -> R:
    """``region(*args)``, inside the range of ``phase`` while a trace is recorded, with its backward pass likewise.

    ``region`` takes its differentiable inputs as positional tensors and returns a tensor or a tuple. The graph
    executes in reverse order of its creation, so markers around the region enclose exactly its backward pass.
    """
    recorder = active()
    if recorder is None or torch.compiler.is_compiling() or not recorder.tracing:
        return region(*args)
    forward_name, backward_name = names_of(phase, layer, recorder.current_microbatch, in_backward())
    forward = _Range(forward_name)
    forward.open()
    try:
        if not torch.is_grad_enabled():
            return region(*args)
        backward = _Range(backward_name)
        result = region(*_mark(backward.close, args))
        outputs = result if isinstance(result, tuple) else (result,)
        marked = _mark(backward.open, outputs, own=not any(given is made for given in args for made in outputs))
    finally:
        forward.close()
    return cast(R, marked if isinstance(result, tuple) else marked[0])


@contextmanager
def phase_range(
    phase: str, *, layer: int | None = None, microbatch: int | None = None, backward: bool = False
) -> Iterator[None]:
    """A range for what happens once per step (grad_reduce, optimizer), or for one end of a collective under way."""
    with _Range(range_name(RangeName(phase, layer, microbatch, backward=backward))).around():
        yield


def microbatch_now() -> int | None:
    """The microbatch being trained on, to be given to :func:`collective` when its backward pass runs."""
    recorder = active()
    return None if recorder is None else recorder.current_microbatch


def set_microbatch(number: int) -> None:
    """Say which microbatch the forward pass goes on with, where a schedule has several under way at once."""
    recorder = active()
    if recorder is not None:
        recorder.current_microbatch = number


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
    recorder = active()
    if recorder is None:
        yield
        return
    name = RangeName(phase, layer, microbatch, backward=backward, recompute=not backward and in_backward())
    with _Range(range_name(name)).around():
        finish = _started(recorder, Collective(name, group, send_bytes, recv_bytes))
        yield
        finish()


def start_collective(
    phase: str,
    *,
    group: str,
    send_bytes: Sequence[int],
    recv_bytes: Sequence[int],
    layer: int | None = None,
    microbatch: int | None = None,
    backward: bool = False,
) -> Callable[[], None]:
    """Note that a collective is issued now; call the result when it has been waited for."""
    recorder = active()
    if recorder is None:
        return lambda: None
    name = RangeName(phase, layer, microbatch, backward=backward)
    return _started(recorder, Collective(name, group, send_bytes, recv_bytes))


def _started(recorder: Recorder, collective: Collective) -> Callable[[], None]:
    arrival = recorder.stamp()
    return lambda: recorder.add_collective(collective, arrival)
