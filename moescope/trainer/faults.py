"""Faults to inject, for teaching and for tests; run.json lists those that are on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from moescope.trainer.settings.control import ControlConfig

Compute = Callable[[Tensor], object]


class Faults:
    """The faults of one rank; without any, every method returns at once."""

    def __init__(self, control: ControlConfig, rank: int, device: torch.device) -> None:
        self._extra = control.slow_factor - 1.0 if control.slow_rank == rank else 0.0
        self._host_stall_s = control.host_stall_ms / 1e3 if control.host_stall_rank == rank else 0.0
        self._data_stall_s = control.data_stall_ms / 1e3 if control.data_stall_rank == rank else 0.0
        mib = control.memory_mib if control.memory_rank == rank else 0
        self.ballast = torch.ones(mib * 2**20, dtype=torch.uint8, device=device) if mib else None

    def slow_down(self, x: Tensor, compute: Compute) -> Tensor:
        """``x``, after doing ``compute``'s work again as often as the slow factor says, and twice that in backward.

        Repeating real work slows a GPU like a CPU, in proportion to the rows.
        """
        if self._extra <= 0:
            return x
        out: Tensor = _Slow.apply(x, compute, self._extra)  # type: ignore[no-untyped-call]
        return out

    def stall_host(self) -> None:
        """Hold the training thread up, once per microbatch."""
        if self._host_stall_s > 0:
            time.sleep(self._host_stall_s)

    def stall_data(self) -> None:
        """Deliver a batch late, once per step."""
        if self._data_stall_s > 0:
            time.sleep(self._data_stall_s)


class _Slow(torch.autograd.Function):
    """The identity, at a price."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, compute: Compute, extra: float) -> Tensor:
        ctx.again = (x.detach(), compute, extra)
        _repeat(*ctx.again)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, compute, extra = ctx.again
        _repeat(x, compute, 2 * extra)
        return grads[0], None, None


@torch.no_grad()
def _repeat(x: Tensor, compute: Compute, times: float) -> None:
    whole = int(times)
    for _ in range(whole):
        compute(x)
    rows = round((times - whole) * x.shape[0])
    if rows:
        compute(x[:rows])
