"""The program of one training step: what every rank's threads launch, in order.

All ranks run the same program; what differs between them (rows received, faults) sits in the arrays of the
operations. Arrays are [scenarios, ranks]: the run itself and its counterfactuals are simulated side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from moescope_hooks.names import RangeName
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

Shape = tuple[int | str, ...]
"""``"R"`` stands for the rows that the rank received."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operation that a CPU thread issues."""

    name: str
    """CPU operation, ``aten::mm``."""
    span: RangeName | None = None
    autograd: bool = False
    """Issued by the autograd thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel(Op):
    """A compute kernel on the compute stream."""

    kernel: str
    duration_ns: float | FloatArray
    dims: tuple[Shape, ...] = ()
    types: tuple[str, ...] = ()
    rows: IntArray | None = None
    """[ranks]: what ``"R"`` in shapes stands for."""
    output: tuple[int | str, int] | None = None
    """Rows and bytes per row of what it allocates."""
    kept: bool = False
    """What it allocates is needed by the backward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange(Op):
    """An all-to-all inside each expert-parallel group, on that group's communication stream."""

    sent: IntArray
    """[scenarios, groups, n, n] rows from member i to member j."""
    row_elements: int
    row_bytes: int
    kept: bool = False
    blocking: bool = True
    """Compute launched later waits for it; else a :class:`Join` says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Op):
    """The compute stream waits for an exchange launched earlier."""

    exchange: Exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce(Op):
    """A collective in which every member depends on every other: all-reduce, or the equal all-to-all of counts."""

    collective: str
    """``allreduce`` or ``all_to_all``."""
    group: str
    """``world``, ``ep`` or ``edp``."""
    elements: int
    dtype: str
    item_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy(Op):
    """A copy between host and device on the compute stream."""

    num_bytes: int
    to_host: bool
    """The CPU waits for a copy to the host, not for one to the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWork(Op):
    """Time on the CPU thread alone; without a name nothing is recorded."""

    duration_ns: float | FloatArray
    calls: tuple[tuple[str, float], ...] = ()
    """Runtime calls that fill the time, after the device has gone idle."""
    inserted: bool = False
    """Not of the program: without its duration, everything else is as if it were not there."""


@dataclass(slots=True)
class Program:
    """Operations in launch order."""

    ops: list[Op] = field(default_factory=list)
