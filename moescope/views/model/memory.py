"""Memory in the view model, beside each rank's peak: tokens, trades, peaks of all steps, allocator snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenMemory:
    """What received tokens take of one rank's memory, and when it runs out. Tokens: those of the fullest microbatch,
    summed over layers."""

    rank: int
    tokens: float
    """Most of any observed step."""
    tokens_over_mean: float
    """Over the mean rank's: the spread of the load, beside that of the peaks."""
    peak_over_mean: float | None
    """Peak of allocated bytes over the mean rank's."""
    bytes_per_token: float
    bytes_per_token_low: float
    bytes_per_token_high: float
    """Two standard errors around the slope."""
    num_points: int
    within_ranks: bool
    """Whether the slope is fitted to changes between a rank's own steps."""
    headroom_bytes: int | None
    """Capacity less the reserved peak; None where the capacity is not known."""
    tokens_at_limit: float | None
    """Tokens at which the headroom is used up, at the slope's middle."""
    tokens_at_limit_low: float | None
    tokens_at_limit_high: float | None


@dataclass(frozen=True, slots=True)
class MemoryTrade:
    """Memory saved for time on one rank: ``recompute`` or ``offload``."""

    rank: int
    kind: str
    saved_bytes_per_step: int
    cost_ns_per_step: int


@dataclass(frozen=True, slots=True)
class DriverCalls:
    """Calls of one kind to the driver's allocator inside one rank's steps."""

    rank: int
    call: str
    calls_per_step: float
    ns_per_step: int
    """On the host."""
    retries_per_step: float
    """Of all kinds together: memory given back and, right after, asked for again."""


@dataclass(frozen=True, slots=True)
class StepPeak:
    """Peaks of one training step by telemetry, profiled or not, over all ranks."""

    step: int
    rank: int
    """With the highest peak."""
    allocated_peak_bytes: int
    mean_allocated_peak_bytes: int
    reserved_peak_bytes: int | None
    profiled: bool


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """A snapshot of torch's caching allocator, of the device that reserves most.

    ``reserved = allocated + pending + free_whole + free_split``.
    """

    rank: int
    file: str
    device: int
    reserved_bytes: int
    allocated_bytes: int
    pending_bytes: int
    """Freed by the program, but another stream may still use it."""
    free_whole_bytes: int
    """In segments that hold nothing."""
    free_split_bytes: int
    """Between blocks in use: fragmentation."""
    largest_free_bytes: int
    rounding_bytes: int
    num_segments: int
    allocated_by_category: Mapping[str, int]
    peak_bytes: int | None
    """Highest within the recorded history; None without one."""
    peak_by_category: Mapping[str, int]
    peak_by_place: Mapping[str, int]
    num_driver_allocations: int
    num_driver_frees: int
    num_retries: int
    num_out_of_memory: int
    num_actions: int


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Empty where nothing of the kind is known."""

    tokens: tuple[TokenMemory, ...] = ()
    trades: tuple[MemoryTrade, ...] = ()
    driver: tuple[DriverCalls, ...] = ()
    steps: tuple[StepPeak, ...] = ()
    snapshots: tuple[MemorySnapshot, ...] = ()
