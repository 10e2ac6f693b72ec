"""When to record a trace: step numbers said in advance, or on demand while the job runs."""

from __future__ import annotations

import os
from dataclasses import dataclass

MAX_STEPS = 50
"""Steps of one window, at most: longer ones fill memory before anything is written."""


@dataclass(frozen=True)
class Window:
    """Steps ``start`` to ``start + steps - 1``, recorded by some ranks."""

    number: int
    start: int
    steps: int
    ranks: tuple[int, ...] | None = None
    """All if None."""

    @property
    def end(self) -> int:
        """The first step after it."""
        return self.start + self.steps

    def covers(self, step: int, rank: int) -> bool:
        """Whether ``rank`` records ``step``."""
        return self.start <= step < self.end and (self.ranks is None or rank in self.ranks)


@dataclass(frozen=True)
class Schedule:
    """Windows of training steps to record with torch.profiler.

    Step numbers are those of the loop: ``observe(first_step=...)`` numbers the first step, and each ``obs.step()``
    ends one. A window covers steps ``start + i * every`` to ``start + i * every + steps - 1``. ``on_signal`` and
    ``on_file`` ask a running job for further ones.
    """

    start: int | None = 5
    """First step of the first window, None for windows on demand only. Leave some steps before it: allocators and
    kernels warm up."""
    steps: int = 2
    """Steps in a window."""
    windows: int = 1
    """Number of windows."""
    every: int | None = None
    """Distance between the starts of two windows; needed when ``windows`` > 1."""
    ranks: tuple[int, ...] | None = None
    """Ranks that record; all by default. What a rank waited for shows only where its peers are recorded too."""
    on_signal: int | None = None
    """Number of a signal, such as ``signal.SIGUSR2``, upon which the next steps are recorded: by all ranks, whichever
    got it. A handler that was there before is called too."""
    on_file: str | os.PathLike[str] | None = None
    """A file that asks for a window when it appears or is touched; it may say ``{"steps": 3, "ranks": [0, 8]}``."""
    max_seconds: float = 60.0
    """A window ends at the first end of a step after this time, however many steps it was to have."""
    max_bytes: int = 4 << 30
    """A window has as many steps as are expected to fit into a file of this size before compression, at least one."""
    record_shapes: bool = True
    """Record input shapes and scalar inputs, which carry the all-to-all splits on CPU traces."""
    profile_memory: bool = True
    """Record allocations and frees."""
    with_stack: bool = False
    """Record Python stacks: dear, and large."""

    def __post_init__(self) -> None:
        if self.start is not None and self.start < 0:
            raise ValueError(f"Schedule.start = {self.start}: must not be negative")
        if not 1 <= self.steps <= MAX_STEPS:
            raise ValueError(f"Schedule.steps = {self.steps}: must be from 1 to {MAX_STEPS}")
        if self.windows < 1:
            raise ValueError(f"Schedule.windows = {self.windows}: must be at least 1")
        if self.windows > 1 and (self.every is None or self.every <= self.steps):
            raise ValueError(f"Schedule.every = {self.every}: must exceed Schedule.steps = {self.steps}")
        if self.start is None and self.on_signal is None and self.on_file is None:
            raise ValueError("Schedule.start = None: then Schedule.on_signal or Schedule.on_file must be given")
        if self.max_seconds <= 0 or self.max_bytes <= 0:
            raise ValueError("Schedule.max_seconds and Schedule.max_bytes: must be positive")

    def window_of(self, step: int) -> Window | None:
        """The scheduled window that step lies in, or None."""
        if self.start is None or step < self.start:
            return None
        number, position = divmod(step - self.start, self.every) if self.every else (0, step - self.start)
        if number >= self.windows or position >= self.steps:
            return None
        return Window(number, step - position, self.steps, self.ranks)
