"""Faults to put into a simulated run, each with the cause it stands for.

A fault changes what the simulator is told (routing, speeds, ports, host time), never what the traces say about it.
Each is written on the command line as ``kind:key=value,key=value``; see :func:`parse_fault`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from moescope.errors import MoescopeError

FloatArray = NDArray[np.float64]


class FaultError(MoescopeError):
    """A fault that does not exist or does not fit the run."""

    def __init__(self, message: str, *, hint: str = ""):
        super().__init__(message, hint=hint, code="bad-fault")


@dataclass(frozen=True, slots=True)
class Fault:
    """Base of all faults: one that changes nothing."""

    kind: ClassVar[str] = ""
    cause: ClassVar[str | None] = None
    """The cause, among the analysis' names, that a right diagnosis gives; None if it costs nothing by itself."""

    def check(self, ranks: int, hosts: int) -> None:
        """Raise :class:`FaultError` where the fault names a rank or host that the run lacks."""
        for key, limit in (("rank", ranks), ("host", hosts)):
            value = getattr(self, key, None)
            if value is not None and not 0 <= value < limit:
                raise FaultError(f"{self.kind}: {key} must be in 0..{limit - 1}, got {value}")

    def culprit(self) -> int | None:
        """The rank that a right diagnosis names, or None where no single rank is at fault."""
        rank = getattr(self, "rank", None)
        return None if rank is None else int(rank)

    def popularity(self, share: FloatArray, layer: int, step: int, ep: int) -> FloatArray:  # noqa: ARG002
        """The experts' relative popularity [E] in one layer and step."""
        return share

    def compute_scale(self, ranks: int, step: int, time_ns: FloatArray) -> FloatArray:  # noqa: ARG002
        """Factor on every compute kernel's time, broadcastable to [..., ranks]."""
        return np.ones(ranks)

    def describe(self) -> str:
        """The fault as ``kind:key=value,...``, which :func:`parse_fault` reads back."""
        values = ",".join(f"{f.name}={getattr(self, f.name)}" for f in dataclasses.fields(self))
        return f"{self.kind}:{values}" if values else self.kind


@dataclass(frozen=True, slots=True)
class ExpertSkew(Fault):
    """Some experts draw more tokens than others.

    ``hot`` tokens go to the experts of one expert-parallel member (``rank``) ``factor`` times as often; with
    ``zipf`` > 0 the popularity of the remaining order follows a Zipf law; ``drift`` moves the hot member on by one
    every so many steps.
    """

    kind: ClassVar[str] = "expert_skew"
    cause: ClassVar[str | None] = "expert_load"
    rank: int = 0
    factor: float = 2.0
    zipf: float = 0.0
    drift: int = 0
    layer: int = -1
    """-1: all layers."""

    def popularity(self, share: FloatArray, layer: int, step: int, ep: int) -> FloatArray:
        if self.layer not in (-1, layer):
            return share
        per_rank = len(share) // ep
        hot = (self.rank + (step // self.drift if self.drift else 0)) % ep
        mine = np.arange(hot * per_rank, (hot + 1) * per_rank)
        scale = np.ones(len(share))
        if self.zipf > 0:
            order = np.random.default_rng(layer).permutation(len(share))
            scale[order] = np.arange(1, len(share) + 1) ** -self.zipf
            rest = np.setdiff1d(order, mine, assume_unique=True)
            scale[mine] = scale[rest].mean()
        scale[mine] *= self.factor
        return share * scale


@dataclass(frozen=True, slots=True)
class SlowRank(Fault):
    """One rank computes slower: constantly, ramping up as it heats, or periodically."""

    kind: ClassVar[str] = "slow_rank"
    cause: ClassVar[str | None] = "slow_rank"
    rank: int = 0
    factor: float = 1.25
    shape: str = "constant"
    """``constant``, ``ramp`` (reaches the factor after ``period_ms``) or ``periodic`` (half of each period)."""
    period_ms: float = 50.0

    def check(self, ranks: int, hosts: int) -> None:
        Fault.check(self, ranks, hosts)
        if self.shape not in ("constant", "ramp", "periodic"):
            raise FaultError(f"slow_rank: shape must be constant, ramp or periodic, got {self.shape!r}")
        if self.factor <= 0 or self.period_ms <= 0:
            raise FaultError("slow_rank: factor and period_ms must be positive")

    def compute_scale(self, ranks: int, step: int, time_ns: FloatArray) -> FloatArray:  # noqa: ARG002
        scale = np.ones(time_ns.shape)
        phase = time_ns[..., self.rank] / (self.period_ms * 1e6)
        depth: FloatArray | float = 1.0
        if self.shape == "ramp":
            depth = np.minimum(phase, 1.0)
        elif self.shape == "periodic":
            depth = np.where(phase % 1.0 < 0.5, 1.0, 0.0)
        scale[..., self.rank] = 1 + (self.factor - 1) * depth
        return scale


@dataclass(frozen=True, slots=True)
class Clock(Fault):
    """Hosts' clocks disagree: a random offset up to ``offset_ms`` and drift up to ``drift_ppm``, either way."""

    kind: ClassVar[str] = "clock"
    offset_ms: float = 50.0
    drift_ppm: float = 30.0


KINDS: dict[str, type[Fault]] = {f.kind: f for f in (ExpertSkew, SlowRank, Clock)}


def parse_fault(text: str) -> Fault:
    """Read ``kind`` or ``kind:key=value,key=value``; values take the type of the key's default."""
    kind, _, rest = text.partition(":")
    if kind not in KINDS:
        raise FaultError(f"no fault is called {kind!r}", hint="one of: " + ", ".join(sorted(KINDS)))
    known = {f.name: f for f in dataclasses.fields(KINDS[kind])}
    values: dict[str, object] = {}
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if key not in known or not equals:
            raise FaultError(f"{kind}: cannot read {item!r}",
                             hint="write key=value, with a key among: " + ", ".join(known))
        try:
            values[key] = type(known[key].default)(value)
        except ValueError as error:
            raise FaultError(f"{kind}: {key}={value!r} is no {type(known[key].default).__name__}") from error
    return KINDS[kind](**values)
