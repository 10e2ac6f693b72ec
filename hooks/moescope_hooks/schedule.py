"""When to record a trace: step numbers, said in advance."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Windows of training steps to record with torch.profiler.

    Step numbers are those of the loop: ``observe(first_step=...)`` numbers the first step, and each ``obs.step()``
    ends one. A window covers steps ``start + i * every`` to ``start + i * every + steps - 1``.
    """

    start: int = 5
    """First step of the first window. Leave some steps before it: allocators and kernels warm up."""
    steps: int = 2
    """Steps in a window."""
    windows: int = 1
    """Number of windows."""
    every: int | None = None
    """Distance between the starts of two windows; needed when ``windows`` > 1."""
    ranks: tuple[int, ...] | None = None
    """Ranks that record; all by default. What a rank waited for shows only where its peers are recorded too."""
    record_shapes: bool = True
    """Record input shapes and scalar inputs, which carry the all-to-all splits on CPU traces."""
    profile_memory: bool = True
    """Record allocations and frees."""
    with_stack: bool = False
    """Record Python stacks: dear, and large."""

    def __post_init__(self) -> None:
        if self.start < 0:
            raise ValueError(f"Schedule.start = {self.start}: must not be negative")
        if self.steps < 1 or self.windows < 1:
            raise ValueError(f"Schedule.steps = {self.steps}, Schedule.windows = {self.windows}: must be at least 1")
        if self.windows > 1 and (self.every is None or self.every <= self.steps):
            raise ValueError(f"Schedule.every = {self.every}: must exceed Schedule.steps = {self.steps}")

    def window_of(self, step: int) -> int | None:
        """The window that step lies in, or None."""
        if step < self.start:
            return None
        window, position = divmod(step - self.start, self.every) if self.every else (0, step - self.start)
        return window if window < self.windows and position < self.steps else None

    def records(self, rank: int) -> bool:
        """Whether ``rank`` records at all."""
        return self.ranks is None or rank in self.ranks
