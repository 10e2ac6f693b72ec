"""The host in the view model: the operations behind idle time, and how work is launched."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IdleCause:
    """Idle time of one rank's device that goes back to one operation.

    ``kind``: ``host_launch``, ``sync``, ``dependency``, ``gap`` or ``outside``, as in the parts of a step.
    """

    rank: int
    kind: str
    operation: str
    """On the host: the operation that synchronised, was running, or launched what came next; or the range outside."""
    detail: str
    """The call and copy behind a synchronisation, what a dependency came after, or where the time was lost."""
    layer: int | None
    phase: str | None
    ns_per_step: int
    times_per_step: float
    longest_ns: int
    longest_start_ns: int
    """When the longest stretch began, common clock."""


@dataclass(frozen=True, slots=True)
class Launches:
    """How one rank's host launches work. ``latency``: from the launching call to the work's beginning, its wait in the
    queue included; ``queue``: work launched and not yet begun, counted with each launch."""

    rank: int
    device_events_per_step: float
    launches_per_step: float
    """Calls; one call may launch a whole graph."""
    launches_per_ms: float
    graph_launches_per_step: float
    device_events_in_graphs_per_step: float
    device_events_without_launch_per_step: float
    call_median_ns: float | None
    latency_median_ns: float | None
    latency_p95_ns: float | None
    queue_mean: float | None
    queue_max: int | None


@dataclass(frozen=True, slots=True)
class Host:
    """``idle``: most time first within each rank. ``launches``: empty on host-only traces."""

    idle: tuple[IdleCause, ...] = ()
    launches: tuple[Launches, ...] = ()
