"""The program of one training step: what every rank's threads launch, in order.

All ranks of a pipeline stage run the same program; what differs between them (rows received, faults) sits in the arrays
of the operations. Arrays are [scenarios, ranks]: the run itself and its counterfactuals are simulated side by side.
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
    stage: int | None = None
    """The pipeline stage whose ranks issue it; None: all ranks."""


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
class Transfer(Op):
    """One side of a message from every rank of a stage to its peer in a neighbouring stage.

    Both sides are launched in the same order in each pair of ranks, on the pair's own communication stream.
    """

    sends: bool
    """Whether ``stage`` sends; else it receives."""
    boundary: int
    """The message crosses from this stage to the next; gradients come back."""
    microbatch: int
    gradient: bool
    elements: int
    num_bytes: int
    layer: int
    """The first layer of the receiving stage, whose input an activation is."""

    @property
    def key(self) -> tuple[int, int, bool]:
        """What its two sides have in common within a step."""
        return self.boundary, self.microbatch, self.gradient

    @property
    def peer(self) -> int:
        """The stage at the other side."""
        return self.boundary + (self.stage == self.boundary)


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Op):
    """The compute stream waits for an exchange or a transfer launched earlier."""

    exchange: Exchange | Transfer


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce(Op):
    """A collective in which every member depends on every other: all-reduce, or the equal all-to-all of counts."""

    collective: str
    """``allreduce`` or ``all_to_all``."""
    group: str
    """``world``, ``ep``, ``edp`` or ``dp``."""
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


Communication = Exchange | Reduce | Transfer
"""What runs on a communication stream."""


@dataclass(slots=True)
class Program:
    """Operations in launch order."""

    ops: list[Op] = field(default_factory=list)
