"""The program of one training step: what every rank's threads launch, in order.

All ranks run the same program; what differs between them (rows received, faults) sits in the arrays of the
operations. Arrays are [scenarios, ranks]: the run itself and its counterfactuals are simulated side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

Dims = tuple[tuple[int | str, ...], ...]
"""Shapes of an operation's inputs; ``"R"`` stands for the rows that the rank received."""


@dataclass(frozen=True, slots=True)
class Span:
    """A named range of the program: ``moescope::L3.mb0.experts.bwd``."""

    phase: str
    layer: int | None = None
    microbatch: int | None = None
    backward: bool = False

    @property
    def name(self) -> str:
        """The range's name in traces."""
        fields = [f"L{self.layer}"] if self.layer is not None else []
        fields += [f"mb{self.microbatch}"] if self.microbatch is not None else []
        fields += [self.phase]
        fields += ["bwd"] if self.backward else []
        return "moescope::" + ".".join(fields)


@dataclass(frozen=True, slots=True)
class Op:
    """One operation that a CPU thread issues."""

    span: Span | None
    name: str
    """CPU operation, ``aten::mm``."""


@dataclass(frozen=True, slots=True)
class Kernel(Op):
    """A compute kernel on the compute stream."""

    kernel: str
    duration_ns: float | FloatArray
    """[scenarios, ranks] or one number for all."""
    dims: Dims = ()
    types: tuple[str, ...] = ()
    rows: IntArray | None = None
    """[ranks]: what ``"R"`` in ``dims`` stands for."""
    grid: int = 132
    block: int = 256


@dataclass(frozen=True, slots=True)
class Exchange(Op):
    """An all-to-all inside each expert-parallel group, on that group's communication stream."""

    sent: IntArray
    """[scenarios, groups, n, n] rows from member i to member j."""
    row_bytes: int
    row_elements: int
    phase: str


@dataclass(frozen=True, slots=True)
class Reduce(Op):
    """A collective in which every member depends on every other: all-reduce, or the equal all-to-all of counts."""

    collective: str
    """``allreduce`` or ``all_to_all``."""
    group: str
    """``world``, ``ep`` or ``edp``."""
    elements: int
    dtype: str
    item_bytes: int


@dataclass(frozen=True, slots=True)
class ReadBack(Op):
    """A device-to-host copy that the CPU waits for."""

    num_bytes: int


@dataclass(frozen=True, slots=True)
class Upload(Op):
    """A host-to-device copy that the CPU doesn't wait for."""

    num_bytes: int


@dataclass(frozen=True, slots=True)
class HostWork(Op):
    """Time on the CPU thread alone."""

    duration_ns: float | FloatArray
    visible: bool = True
    """Whether the profiler records it."""


@dataclass(slots=True)
class Program:
    """Operations in launch order; those from ``backward_at`` until ``forward_at`` run on the autograd thread."""

    ops: list[Op] = field(default_factory=list)
    autograd: list[bool] = field(default_factory=list)

    def add(self, *ops: Op, autograd: bool = False) -> None:
        """Append operations."""
        self.ops.extend(ops)
        self.autograd.extend([autograd] * len(ops))


Rows = Callable[[FloatArray], FloatArray]
