"""The result of an analysis as plain dataclasses: the only thing the outputs read.

The command line, ``--json``, the report, the dashboard and the Python API all show these values and
compute none of their own, so the four show the same numbers. Times are integer nanoseconds; absolute
times are on the common clock (see :class:`Clock`); ``per_step`` values are means over the profiled steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moescope.findings.model import Finding
from moescope.views.library import LibraryCollective
from moescope.views.model.gemm import Gemm
from moescope.views.model.host import Host
from moescope.views.model.memory import MemoryUse
from moescope.views.model.path import CriticalPath
from moescope.views.model.router import HostTraffic, RouterLayer

SCHEMA = "moescope.analysis/1"

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


@dataclass(frozen=True, slots=True)
class Unions:
    """Exact interval unions over a rank's device events of the whole file, first start to last end."""

    total: int
    busy: int
    compute: int
    communication: int
    exposed_communication: int
    copies: int
    idle: int


@dataclass(frozen=True, slots=True)
class Step:
    """One profiled training step, over all ranks that recorded it."""

    step: int
    window_ns: int
    """The longest rank's window."""
    num_ranks: int
    start_ns: int
    """Earliest start over the ranks, common clock."""


@dataclass(frozen=True, slots=True)
class RankStep:
    """The exclusive parts of one rank's step; ``sum(parts_ns.values()) == window_ns``."""

    rank: int
    host: str
    device: str
    step: int
    start_ns: int
    window_ns: int
    parts_ns: Mapping[str, int]
    unions_ns: Unions


@dataclass(frozen=True, slots=True)
class Clock:
    """One host's clock against the reference: common time = local time - offset - drift * (t - t0)."""

    host: str
    ranks: tuple[int, ...]
    offset_ns: int
    drift_ppm: float
    low_ns: int
    """Lower end of the bracket that provably contains the offset."""
    high_ns: int
    method: str
    num_anchors: int
    origin_ns: int = 0
    """t0: the local time at which the offset holds."""


@dataclass(frozen=True, slots=True)
class Wait:
    """One rank's communication of one kind in one step, summed over its collectives."""

    rank: int
    step: int
    kind: str
    arrival_wait_ns: int
    removable_wait_ns: int
    transfer_ns: int
    times_last: int
    """In how many collectives this rank was the last to arrive."""
    uncertainty_ns: int


@dataclass(frozen=True, slots=True)
class WaitEdge:
    """How long ``waiter`` waited for ``late`` per step."""

    waiter: int
    late: int
    wait_ns_per_step: int


@dataclass(frozen=True, slots=True)
class Cause:
    """What made ranks wait, charged to the rank and layer that caused it."""

    cause: str
    rank: int | None
    layer: int | None
    cost_ns_per_step: int
    """By how much the step would be shorter without it."""
    share_of_step: float
    uncertainty_ns: int
    """What the clocks' brackets and the scatter around the fits (one standard deviation) can add up to in a step."""
    charged_wait_ns_per_step: int
    """Arrival waits charged to it, summed over the waiting ranks; over all causes they sum to the waits."""


@dataclass(frozen=True, slots=True)
class Missing:
    """What the input lacks, which question that leaves open, and how to record it."""

    what: str
    why: str
    how_to_record: str


@dataclass(frozen=True, slots=True)
class CollectiveRank:
    """One rank's part in one collective; times on the common clock."""

    rank: int
    start_ns: int
    end_ns: int
    arrival_wait_ns: int
    removable_wait_ns: int
    transfer_ns: int
    send_bytes: int | None
    recv_bytes: int | None


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective, matched across the ranks that took part."""

    group: str
    kind: str
    sequence: int
    step: int | None
    layer: int | None
    phase: str | None
    by_rank: tuple[CollectiveRank, ...]
    tier: str = ""
    """``within host`` or ``across hosts``."""
    span_ns: int = 0
    """From the last arrival to the last end: the transfer with everyone there."""
    algbw_gb_per_s: float | None = None
    """Bytes of the largest rank's buffer over the shortest participation, which holds no wait; null without sizes."""
    busbw_gb_per_s: float | None = None
    base_ns: int | None = None
    """What the link model gives for even volumes; base, volume imbalance and inefficiency sum to the span."""
    volume_imbalance_ns: int | None = None
    inefficiency_ns: int | None = None
    """The rest, signed; these three are for all-to-alls whose sizes are known."""


@dataclass(frozen=True, slots=True)
class LoadLayer:
    """One MoE layer's load, as means over the observed microbatches of all steps."""

    layer: int
    expert_tokens: tuple[float, ...]
    """Mean routed assignments per expert and microbatch, [num_experts]; empty if only ranks are known."""
    rank_tokens: tuple[float, ...]
    """Mean received assignments per rank and microbatch, in the order of ``Load.ranks``."""
    maxvio_expert: float | None
    """Mean over microbatches of (max - mean) / mean over experts."""
    maxvio_rank: float
    maxvio_expert_floor: float | None
    """What uniformly random routing of as many tokens would give."""
    maxvio_rank_floor: float
    num_dead_experts: int | None
    dropped_share: float | None
    entropy: float | None
    """Mean normalised entropy of the expert counts, 1 when uniform."""
    hottest_rank: int
    cost_ns_per_step: int | None
    """Sum over microbatches of (max over ranks - mean) expert time."""
    cv_expert: float | None = None
    """Mean over microbatches of std / mean over experts."""
    cv_rank: float = 0.0
    gini_expert: float | None = None
    """Mean over microbatches of the Gini coefficient over experts: 0 even, near 1 when one takes all."""


@dataclass(frozen=True, slots=True)
class LoadInterval:
    """One layer and microbatch of one step: the short interval that summaries hide."""

    step: int
    microbatch: int
    layer: int
    maxvio_expert: float | None
    maxvio_rank: float
    hottest_rank: int
    hottest_expert: int | None


@dataclass(frozen=True, slots=True)
class Load:
    """Load of experts and ranks."""

    source: str
    """``telemetry``, ``splits`` or ``grouped_gemm``: where the counts come from, in this preference."""
    ranks: tuple[int, ...]
    layers: tuple[LoadLayer, ...]
    intervals: tuple[LoadInterval, ...]
    cost_ns_per_step: int | None
    cost_basis: str
    """How the expert time behind the cost was obtained."""
    hottest_rank: int
    maxvio_rank: float
    maxvio_rank_floor: float


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Memory of one rank and device over the profiled window."""

    rank: int
    device: str
    allocated_peak_bytes: int
    reserved_peak_bytes: int | None
    capacity_bytes: int | None
    peak_at_ns: int
    peak_phase: str
    """The innermost annotation or operation running at the peak."""
    live_by_phase_bytes: Mapping[str, int]
    """What was live at the peak, by the phase that allocated it."""
    series: tuple[tuple[int, int], ...]
    """(time ns, allocated bytes), at most a few hundred points that keep every bucket's maximum."""
    source: str
    """``events`` (memory events of the trace) or ``telemetry``."""
    reserved_at_peak_bytes: int | None = None
    """Reserved when most was allocated; what it is more than that is fragmentation and cache."""
    live_by_layer_bytes: Mapping[str, int] = field(default_factory=dict)
    live_by_operation_bytes: Mapping[str, int] = field(default_factory=dict)
    reserved_series: tuple[tuple[int, int], ...] = ()
    """(time ns, reserved bytes) at the moments of ``series``."""


@dataclass(frozen=True, slots=True)
class TelemetryStep:
    """One training step as the hooks saw it, profiled or not, over all ranks."""

    step: int
    start_ns: int
    duration_ns: int
    """The longest rank's."""
    tokens: int
    loss: float | None
    gradient_norm: float | None
    maxvio_rank: float | None
    profiled: bool


@dataclass(frozen=True, slots=True)
class Source:
    """One rank's trace window: which file, what it held."""

    rank: int
    window: int
    file: str
    host: str
    device: str
    start_ns: int
    end_ns: int
    num_events: int
    num_device_events: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Analysis:
    """Everything one directory yields."""

    name: str
    path: str
    basis: str
    """``measured``, ``simulated`` or ``unknown``."""
    controls: tuple[str, ...]
    """Diagnostic controls and injected faults declared by the run, for example a forced router skew."""
    world_size: int
    sources: tuple[Source, ...]
    steps: tuple[Step, ...]
    ranks: tuple[RankStep, ...]
    clock: tuple[Clock, ...]
    waits: tuple[Wait, ...]
    wait_edges: tuple[WaitEdge, ...]
    causes: tuple[Cause, ...]
    findings: tuple[Finding, ...]
    missing: tuple[Missing, ...]
    collectives: tuple[Collective, ...]
    load: Load | None
    memory: tuple[RankMemory, ...]
    telemetry: tuple[TelemetryStep, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """run.json, as it was read."""
    gemm: Gemm | None = None
    """Matrix operations; None where the traces record no shapes."""
    host: Host = field(default_factory=Host)
    memory_use: MemoryUse = field(default_factory=MemoryUse)
    routers: tuple[RouterLayer, ...] = ()
    traffic: tuple[HostTraffic, ...] = ()
    library: tuple[LibraryCollective, ...] = ()
    """Collectives as the communication library timed them; empty without a recording of its own."""
    critical_path: CriticalPath | None = None
    """What the step's length hangs on; None where no collective ties the ranks together."""
