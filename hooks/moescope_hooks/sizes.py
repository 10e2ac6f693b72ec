"""What a rank holds in parameters, gradients and optimizer state, in bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

REFRESH_STEPS = 50


def held_bytes(tensors: Iterable[Any]) -> int:
    """Bytes that this rank holds of ``tensors``: of a sharded tensor, its own shard."""
    total = 0
    for tensor in tensors:
        if isinstance(tensor, Tensor):
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            total += local.numel() * local.element_size()
    return total


class Sizes:
    """Measures the sizes now and then: they change rarely, and walking a large model costs time."""

    def __init__(self, models: Sequence[nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        self._models = models
        self._optimizer = optimizer
        self._measured_at: int | None = None
        self._sizes: tuple[int, int | None, int | None] = (0, None, None)

    def now(self, step: int) -> tuple[int, int | None, int | None]:
        """(parameter, gradient, optimizer) bytes; gradients are None where they were freed before the step ended."""
        if self._measured_at is None or step - self._measured_at >= REFRESH_STEPS:
            self._measured_at = step
            parameters = [parameter for model in self._models for parameter in model.parameters()]
            gradients = held_bytes(p.grad for p in parameters)
            self._sizes = (held_bytes(parameters), gradients or None, self._optimizer_bytes())
        return self._sizes

    def _optimizer_bytes(self) -> int | None:
        if self._optimizer is None:
            return None
        return held_bytes(value for state in self._optimizer.state.values() for value in state.values())
