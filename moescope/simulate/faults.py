"""Faults to put into a simulated run, each with the cause it stands for.

A fault changes what the simulator is told (routing, speeds, ports, host time), never what the traces say about it.
Each is written on the command line as ``kind`` or ``kind:key=value,key=value``; see :func:`parse_fault`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from moescope.errors import MoescopeError
from moescope.simulate.stalls import ALLOCATOR_RETRY, Stall

FloatArray = NDArray[np.float64]


SMALLEST, LARGEST = 1e-6, 1e6
"""Of what a fault's key may be, so that no time overflows: a longer or finer effect is none to learn from."""
_ZIPF, _DOMAIN = 0xE7, 0xE8


class FaultError(MoescopeError):
    """A fault that does not exist or does not fit the run."""

    def __init__(self, message: str, *, hint: str = ""):
        super().__init__(message, hint=hint, code="bad-fault")


@dataclass(frozen=True, slots=True)
class Fault:
    """Base of all faults: one that changes nothing."""

    kind: ClassVar[str] = ""
    cause: ClassVar[str | None] = None
    """The cause, among the names of the analysis, that a right diagnosis gives; None if it costs no time."""
    for_all: ClassVar[bool] = False
    """Whether ``rank`` -1 stands for all ranks."""

    def check(self, ranks: int, hosts: int) -> None:
        """Raise :class:`FaultError` where the fault names a rank or host that the run lacks, or an odd number."""
        for key, limit in (("rank", ranks), ("host", hosts)):
            value = getattr(self, key, None)
            lowest = -1 if self.for_all and key == "rank" else 0
            if value is not None and not lowest <= value < limit:
                raise FaultError(f"{self.kind}: {key} must be in 0..{limit - 1}, got {value}")
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if isinstance(value, float) and value != 0 and not SMALLEST <= value <= LARGEST:
                raise FaultError(f"{self.kind}: {item.name} must be 0 or in {SMALLEST:g}..{LARGEST:g}, got {value}")
            if isinstance(value, int) and abs(value) > LARGEST:
                raise FaultError(f"{self.kind}: {item.name} must be within {LARGEST:g}, got {value}")

    def culprits(self, ranks: int) -> list[int]:
        """The ranks at fault; all of them where the fault names none."""
        rank = int(getattr(self, "rank", -1))
        return list(range(ranks)) if rank < 0 else [rank]

    def popularity(self, share: FloatArray, layer: int, step: int, ep: int) -> FloatArray:  # noqa: ARG002
        """The experts' relative popularity with each source rank's tokens, [ranks, E], in one layer and step."""
        return share

    def compute_scale(self, time_ns: FloatArray) -> FloatArray | None:  # noqa: ARG002
        """Factor on the time of a compute kernel that starts at ``time_ns`` [ranks]; None: no effect."""
        return None

    def port_scale(self, hosts: NDArray[np.int64], tier: str) -> FloatArray | None:  # noqa: ARG002
        """Factor on the capacity of every rank's ports in a tier, ``intra`` or ``inter``; ``hosts`` is [ranks]."""
        return None

    def host_extra_ns(self, shape: tuple[int, int], rng: np.random.Generator) -> FloatArray | None:  # noqa: ARG002
        """Additional CPU time [operations, ranks] of one step's operations."""
        return None

    def stalls(self, ranks: int, step: int, rng: np.random.Generator) -> list[Stall]:  # noqa: ARG002
        """Pauses of the CPU threads in one step."""
        return []

    def describe(self) -> str:
        """The fault as ``kind:key=value,...``, which :func:`parse_fault` reads back."""
        values = ",".join(f"{f.name}={getattr(self, f.name)}" for f in dataclasses.fields(self))
        return f"{self.kind}:{values}" if values else self.kind


@dataclass(frozen=True, slots=True)
class ExpertSkew(Fault):
    """Some experts draw more tokens than others.

    Tokens choose the experts of member ``rank`` of each expert-parallel group ``factor`` times as often. With
    ``zipf`` > 0 the popularity of all experts, in an order that differs between layers, follows a Zipf law with
    that exponent. ``drift`` moves the hot member on by one every so many steps. With ``domain`` > 0 each source rank
    reads a text of its own: its tokens' preferences are spread by that much more (sigma of their logarithm).
    """

    kind: ClassVar[str] = "expert_skew"
    cause: ClassVar[str | None] = "expert_load"
    rank: int = 0
    factor: float = 2.0
    zipf: float = 0.0
    drift: int = 0
    domain: float = 0.0
    layer: int = -1
    """-1: all layers."""

    def popularity(self, share: FloatArray, layer: int, step: int, ep: int) -> FloatArray:
        if self.layer not in {-1, layer}:
            return share
        ranks, experts = share.shape
        scale = np.ones(experts)
        if self.zipf > 0:
            order = np.random.default_rng([_ZIPF, layer]).permutation(experts)
            scale[order] = np.arange(1, experts + 1) ** -self.zipf
        per_member = experts // ep
        hot = (self.rank + (step // self.drift if self.drift else 0)) % ep
        scale[hot * per_member : (hot + 1) * per_member] *= self.factor
        preference = np.random.default_rng([_DOMAIN, layer]).standard_normal((ranks, experts))
        return share * scale * np.exp(self.domain * preference)


@dataclass(frozen=True, slots=True)
class SlowRank(Fault):
    """One rank computes slower: all the time, ramping up as it heats, or periodically."""

    kind: ClassVar[str] = "slow_rank"
    cause: ClassVar[str | None] = "slow_rank"
    rank: int = 0
    factor: float = 1.25
    shape: str = "constant"
    """``constant``, ``ramp`` (reaches the factor after ``period_ms``) or ``periodic`` (half of each period)."""
    period_ms: float = 50.0

    def check(self, ranks: int, hosts: int) -> None:
        Fault.check(self, ranks, hosts)
        if self.shape not in {"constant", "ramp", "periodic"}:
            raise FaultError(f"slow_rank: shape must be constant, ramp or periodic, got {self.shape!r}")
        if self.factor <= 0 or self.period_ms <= 0:
            raise FaultError("slow_rank: factor and period_ms must be positive")

    def compute_scale(self, time_ns: FloatArray) -> FloatArray | None:
        scale = np.ones(time_ns.shape)
        phase = time_ns[self.rank] / (self.period_ms * 1e6)
        depth = {"constant": 1.0, "ramp": min(phase, 1.0), "periodic": float(phase % 1.0 < 0.5)}[self.shape]
        scale[self.rank] = 1 + (self.factor - 1) * depth
        return scale


@dataclass(frozen=True, slots=True)
class SlowLink(Fault):
    """The ports of one rank carry only ``factor`` of what they should, in both directions."""

    kind: ClassVar[str] = "slow_link"
    cause: ClassVar[str | None] = "slow_network"
    rank: int = 0
    factor: float = 0.4
    tier: str = "both"
    """``intra`` (inside the host), ``inter`` (between hosts) or ``both``."""

    def check(self, ranks: int, hosts: int) -> None:
        Fault.check(self, ranks, hosts)
        if self.tier not in {"intra", "inter", "both"} or self.factor <= 0:
            raise FaultError("slow_link: tier must be intra, inter or both, and factor positive")

    def port_scale(self, hosts: NDArray[np.int64], tier: str) -> FloatArray | None:
        return np.where(np.arange(len(hosts)) == self.rank, self.factor, 1.0) if self.tier in {tier, "both"} else None


@dataclass(frozen=True, slots=True)
class SlowHost(Fault):
    """All of one host's ports to other hosts carry only ``factor`` of what they should."""

    kind: ClassVar[str] = "slow_host"
    cause: ClassVar[str | None] = "slow_network"
    host: int = 0
    factor: float = 0.4

    def check(self, ranks: int, hosts: int) -> None:
        Fault.check(self, ranks, hosts)
        if hosts < 2 or self.factor <= 0:
            raise FaultError("slow_host needs at least two hosts and a positive factor")

    def port_scale(self, hosts: NDArray[np.int64], tier: str) -> FloatArray | None:
        return np.where(hosts == self.host, self.factor, 1.0) if tier == "inter" else None


@dataclass(frozen=True, slots=True)
class HostJitter(Fault):
    """A share of one rank's CPU operations takes longer, by ``mean_us`` on average (exponential): a busy host."""

    kind: ClassVar[str] = "host_jitter"
    cause: ClassVar[str | None] = "host"
    for_all: ClassVar[bool] = True
    rank: int = 0
    share: float = 0.3
    mean_us: float = 400.0

    def host_extra_ns(self, shape: tuple[int, int], rng: np.random.Generator) -> FloatArray | None:
        hit = rng.random(shape) < self.share
        extra = np.where(hit, rng.exponential(self.mean_us * 1e3, shape), 0.0)
        return extra if self.rank < 0 else np.where(np.arange(shape[1]) == self.rank, extra, 0.0)


@dataclass(frozen=True, slots=True)
class DataLoaderStall(Fault):
    """One rank's next batch comes ``ms`` late, every ``every`` steps."""

    kind: ClassVar[str] = "data_loader_stall"
    cause: ClassVar[str | None] = "host"
    for_all: ClassVar[bool] = True
    rank: int = 0
    ms: float = 15.0
    every: int = 1

    def stalls(self, ranks: int, step: int, rng: np.random.Generator) -> list[Stall]:  # noqa: ARG002
        return [Stall("load", _only(self.rank, ranks, self.ms))] if step % max(self.every, 1) == 0 else []


@dataclass(frozen=True, slots=True)
class GcPause(Fault):
    """One rank's interpreter (with ``rank`` -1 each, at its own moment) stops for ``ms`` in the forward pass."""

    kind: ClassVar[str] = "gc_pause"
    cause: ClassVar[str | None] = "host"
    for_all: ClassVar[bool] = True
    rank: int = 0
    ms: float = 8.0
    times: int = 1
    """Pauses per step."""

    def stalls(self, ranks: int, step: int, rng: np.random.Generator) -> list[Stall]:  # noqa: ARG002
        chosen = range(ranks) if self.rank < 0 else (self.rank,)
        return [
            Stall("forward", _only(rank, ranks, self.ms), at=float(rng.random()))
            for rank in chosen
            for _ in range(self.times)
        ]


@dataclass(frozen=True, slots=True)
class AllocatorStall(Fault):
    """One rank's allocator finds no block ``times`` a step: it frees what it caches, which waits for the device."""

    kind: ClassVar[str] = "allocator_stall"
    cause: ClassVar[str | None] = "memory"
    for_all: ClassVar[bool] = True
    rank: int = 0
    ms: float = 4.0
    times: int = 2

    def stalls(self, ranks: int, step: int, rng: np.random.Generator) -> list[Stall]:  # noqa: ARG002
        one = _only(self.rank, ranks, self.ms)
        return [Stall("experts", one, at=float(rng.random()), calls=ALLOCATOR_RETRY) for _ in range(self.times)]


@dataclass(frozen=True, slots=True)
class NearFullMemory(Fault):
    """One rank's memory is almost full, so that its allocator must also free and ask again ``times`` a step."""

    kind: ClassVar[str] = "near_full_memory"
    cause: ClassVar[str | None] = "memory"
    for_all: ClassVar[bool] = True
    rank: int = 0
    share: float = 0.97
    """Peak of what is allocated, as a share of the device's memory."""
    ms: float = 3.0
    times: int = 2

    def stalls(self, ranks: int, step: int, rng: np.random.Generator) -> list[Stall]:  # noqa: ARG002
        one = _only(self.rank, ranks, self.ms)
        return [Stall("experts", one, at=float(rng.random()), calls=ALLOCATOR_RETRY) for _ in range(self.times)]


@dataclass(frozen=True, slots=True)
class TinyExperts(Fault):
    """``factor`` times as many experts for the same tokens: each product is small, tiles and waves are wasted.

    The run without it has the same router and routing; ``factor`` neighbouring experts are one product there.
    """

    kind: ClassVar[str] = "tiny_experts"
    cause: ClassVar[str | None] = "small_gemm"
    factor: int = 16

    def check(self, ranks: int, hosts: int) -> None:  # noqa: ARG002
        if self.factor < 2:
            raise FaultError("tiny_experts: factor must be at least 2")

    def culprits(self, ranks: int) -> list[int]:
        return list(range(ranks))


@dataclass(frozen=True, slots=True)
class Clock(Fault):
    """Hosts' clocks disagree: a random offset up to ``offset_ms`` and drift up to ``drift_ppm``, either way."""

    kind: ClassVar[str] = "clock"
    offset_ms: float = 50.0
    drift_ppm: float = 30.0


@dataclass(frozen=True, slots=True)
class LostEvents(Fault):
    """The profiler lost events of one rank.

    ``which`` = ``first``: it began late, so that everything up to and including the first ``count`` collectives is
    missing; ``random``: the device events of ``count`` random collectives are.
    """

    kind: ClassVar[str] = "lost_events"
    for_all: ClassVar[bool] = True
    rank: int = 0
    count: int = 1
    which: str = "first"

    def check(self, ranks: int, hosts: int) -> None:
        Fault.check(self, ranks, hosts)
        if self.which not in {"first", "random"} or self.count < 1:
            raise FaultError("lost_events: which must be first or random, and count at least 1")


@dataclass(frozen=True, slots=True)
class MissingRanks(Fault):
    """Traces of some ranks are missing, as ``ranks=3+5``."""

    kind: ClassVar[str] = "missing_ranks"
    ranks: str = "0"

    def listed(self) -> tuple[int, ...]:
        """The ranks that wrote no trace."""
        return tuple(int(r) for r in self.ranks.split("+"))

    def check(self, ranks: int, hosts: int) -> None:  # noqa: ARG002
        if not all(part.isdecimal() and int(part) < ranks for part in self.ranks.split("+")):
            raise FaultError(f"missing_ranks: ranks must be numbers below {ranks} joined by +, got {self.ranks!r}")
        if len(set(self.listed())) >= ranks:
            raise FaultError("missing_ranks: at least one rank must be left")


def _only(rank: int, ranks: int, ms: float) -> FloatArray:
    """So many milliseconds on one rank, in ns; on all where ``rank`` is -1."""
    return np.where((np.arange(ranks) == rank) | (rank < 0), ms * 1e6, 0.0)


_ALL: tuple[type[Fault], ...] = (
    ExpertSkew, SlowRank, SlowLink, SlowHost, HostJitter, DataLoaderStall, GcPause, AllocatorStall, TinyExperts,
    NearFullMemory, Clock, LostEvents, MissingRanks,
)  # fmt: skip
KINDS: dict[str, type[Fault]] = {fault.kind: fault for fault in _ALL}
"""Every fault by its name."""


def parse_fault(text: str) -> Fault:
    """Read ``kind`` or ``kind:key=value,key=value``; values take the type of the key's default."""
    kind, _, rest = text.partition(":")
    if kind not in KINDS:
        raise FaultError(f"no fault is called {kind!r}", hint="One of: " + ", ".join(sorted(KINDS)))
    defaults = {f.name: getattr(KINDS[kind](), f.name) for f in dataclasses.fields(KINDS[kind])}
    values: dict[str, object] = {}
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if key not in defaults or not equals:
            hint = f"Write key=value, with a key among: {', '.join(defaults)}" if defaults else f"{kind} takes no keys."
            raise FaultError(f"{kind}: cannot read {item!r}", hint=hint)
        try:
            values[key] = type(defaults[key])(value)
        except ValueError as error:
            raise FaultError(f"{kind}: {key} must be of type {type(defaults[key]).__name__}, got {value!r}") from error
    return KINDS[kind](**values)
