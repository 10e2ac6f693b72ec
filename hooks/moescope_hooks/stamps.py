"""Moments in time: on the CPU the host clock, on a GPU device events that are read when the step is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Stamp = Any
"""An int of nanoseconds, or a recorded torch.cuda.Event."""

ReadStamps = Callable[[Sequence[Stamp]], list[int]]
"""Gives the stamps of one step as integer nanoseconds of the host clock."""


class HostStamps:
    """Stamps of the host clock."""

    def stamp(self) -> Stamp:
        """Now."""
        return time.time_ns()

    def end_step(self) -> ReadStamps:
        """How to read this step's stamps."""
        return list


class DeviceStamps:
    """Stamps as events on the current CUDA stream, anchored once to the host clock.

    A boundary event ends every step and becomes the anchor of the next, so that only short spans are measured:
    torch gives the time between two events as float32 milliseconds, which resolves 60 ns within a second.
    """

    def __init__(self) -> None:
        torch.cuda.synchronize()
        self._anchor = self.stamp()
        self._anchor.synchronize()
        self._anchor_ns = time.time_ns()

    def stamp(self) -> Stamp:
        """An event recorded now on the current stream."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def end_step(self) -> ReadStamps:
        """How to read this step's stamps: to be called once per step, in order, off the training thread."""
        boundary = self.stamp()

        def read(stamps: Sequence[Stamp]) -> list[int]:
            boundary.synchronize()
            anchor, anchor_ns = self._anchor, self._anchor_ns
            self._anchor, self._anchor_ns = boundary, anchor_ns + round(anchor.elapsed_time(boundary) * 1e6)
            return [anchor_ns + round(anchor.elapsed_time(stamp) * 1e6) for stamp in stamps]

        return read


def fetch_later(tensors: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
    """Start copying ``tensors`` to the host; the result waits for the copy and gives them there, flat.

    One copy per dtype, into pinned memory, without synchronising: the wait happens where the result is called.
    """
    if not tensors:
        return list
    if not any(t.is_cuda for t in tensors):
        return lambda: [t.reshape(-1) for t in tensors]
    copies: dict[torch.dtype, Tensor] = {}
    for dtype in {t.dtype for t in tensors}:
        flat = torch.cat([t.reshape(-1) for t in tensors if t.dtype == dtype])
        copies[dtype] = torch.empty(flat.shape, dtype=dtype, pin_memory=True).copy_(flat, non_blocking=True)
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()
    places = [(t.dtype, t.numel()) for t in tensors]

    def result() -> list[Tensor]:
        done.synchronize()
        values, taken = [], dict.fromkeys(copies, 0)
        for dtype, count in places:
            values.append(copies[dtype][taken[dtype] : taken[dtype] + count])
            taken[dtype] += count
        return values

    return result
