"""Matrix operations in the view model: rates, what small products lose and to what, curves, utilisation.

``*_per_step`` values are means over the ranks and profiled steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GemmReference:
    """The rate that products of one element type on one kind of device are held against."""

    device: str
    dtype: str
    rate_tflops: float
    source: str
    """``baseline``, ``large products in the trace``, ``device peak`` or ``best rate in the trace``."""
    num_calls: int
    """Products behind the rate, 0 where it comes from elsewhere."""
    peak_tflops: float | None
    """Dense peak by the data sheet; None where the device or the type is not listed."""
    memory_gb_per_s: float | None


@dataclass(frozen=True, slots=True)
class GemmCost:
    """Products of one sort. ``loss_ns_per_step`` = time - FLOPs / reference, the sum of ``parts_ns_per_step``."""

    calls_per_step: float
    time_ns_per_step: int
    flops_per_step: float
    rate_tflops: float
    loss_ns_per_step: int
    parts_ns_per_step: Mapping[str, int]
    """``memory``, ``tile``, ``wave``, ``launch`` and ``residual``, which may be negative."""


@dataclass(frozen=True, slots=True)
class GemmLayer:
    """The experts' products of one layer."""

    layer: int
    cost: GemmCost


@dataclass(frozen=True, slots=True)
class GemmBucket:
    """The experts' products with ``low_rows <= rows per expert < high_rows``."""

    low_rows: int
    high_rows: int | None
    cost: GemmCost


@dataclass(frozen=True, slots=True)
class GemmRank:
    """One rank's matrix operations in one step; nanoseconds and FLOPs of that step."""

    rank: int
    step: int
    flops: int
    """Of the model: recomputed forward work is not in it."""
    recompute_flops: int
    time_ns: int
    loss_ns: int
    expert_time_ns: int
    expert_loss_ns: int
    utilisation: float | None
    """Model FLOPs over what the device's dense peak does in the step's window; None where the peak is not known."""


@dataclass(frozen=True, slots=True)
class GemmExpert:
    """One local expert's products over all layers."""

    rank: int
    expert: int
    """Its number on its rank."""
    calls_per_step: float
    rows: float
    """Mean per call."""
    time_ns_per_step: int
    loss_ns_per_step: int
    is_shared_out: bool
    """Whether its time is a share of grouped calls', by the rows that their tiles compute."""


@dataclass(frozen=True, slots=True)
class GemmCurve:
    """Products of one weight [k, n] (or ``groups`` of them): kernel time over rows per group.

    ``points``: (rows, median ns, calls). The line ``fixed_ns + ns_per_row * rows`` is None where rows vary too little.
    """

    kind: str
    dtype: str
    groups: int
    n: int
    k: int
    fixed_ns: float | None
    ns_per_row: float | None
    residual_ns: float | None
    points: tuple[tuple[float, float, int], ...]


@dataclass(frozen=True, slots=True)
class Gemm:
    """Matrix operations of all ranks, from the shapes that the traces record."""

    references: tuple[GemmReference, ...]
    experts: GemmCost
    other: GemmCost
    layers: tuple[GemmLayer, ...]
    buckets: tuple[GemmBucket, ...]
    by_rank: tuple[GemmRank, ...]
    curves: tuple[GemmCurve, ...]
    rows_per_expert_median: float | None
    utilisation: float | None
    """Model FLOPs utilisation: mean over ranks and steps; a lower bound where ``covered_share`` is below 1."""
    recompute_ns_per_step: int
    """Time of recomputed matrix operations."""
    covered_share: float
    """Share of the matrix products' time whose shapes are recorded."""
    grouped_saving_ns_per_step: int
    """What one grouped call in place of single experts' calls would save: gaps, and the fixed time of all but one."""
    by_expert: tuple[GemmExpert, ...] = ()
    """Empty where experts cannot be told apart."""
    looped_ns_per_step: int = 0
    """What those single calls take; one grouped call would take this less the saving."""
    critical_loss_ns_per_step: int | None = None
    """What the experts' products on the step's critical path lose; None where no path is known."""
