"""How large a trace will be, said before it is recorded."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

BYTES_PER_CALL = 50_000
"""Of a trace, before compression, for one call of one leaf module with its backward pass."""
BYTES_PER_PARAMETER = 5_000
"""For one parameter's part in the optimizer's step."""


class TraceSize:
    """Expects a trace to be as large per step as the last one; the first, by the size of the model."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._num_leaves = sum(not any(module.children()) for model in models for module in model.modules())
        self._num_parameters = sum(1 for model in models for _ in model.parameters())
        self._measured: int | None = None

    def learn(self, num_bytes: int, steps: int) -> None:
        """Take the size of a trace that was written."""
        if steps > 0:
            self._measured = num_bytes // steps

    def per_step(self, microbatches: int) -> int:
        """Bytes that a step is expected to take, before compression."""
        if self._measured is not None:
            return self._measured
        calls = self._num_leaves * max(1, microbatches)
        return calls * BYTES_PER_CALL + self._num_parameters * BYTES_PER_PARAMETER
