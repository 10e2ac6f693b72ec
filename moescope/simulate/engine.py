"""Runs a program on all ranks at once: CPU threads, launch queues, streams, collectives.

The programs of the ranks are the same, so the events are simulated in program order with vectors over
[scenarios, ranks] as state: when each CPU thread is free, when each stream is. Only collectives couple ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from moescope.simulate.config import SimConfig
from moescope.simulate.network import Tier, exchange_ends
from moescope.simulate.program import Exchange, HostWork, Kernel, Op, Program, ReadBack, Reduce, Upload
from moescope.simulate.scenario import Scenario

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

_ENGINE = 2
_QUEUE = 1024
"""Launches that the driver accepts ahead of the device."""
_GAP_NS = 2_500.0
"""Python between two operations."""
_CPU_NS = {Kernel: 8_000.0, Exchange: 42_000.0, Reduce: 42_000.0, ReadBack: 14_000.0, Upload: 14_000.0, HostWork: 0.0}
_LAUNCH_SHARE = 0.4
LAUNCH_CALL_NS = 3_600.0
_LAUNCH_LATENCY_NS = 4_600.0
_STREAM_GAP_NS = 900.0
_SYNC_NS = 2_500.0


@dataclass(frozen=True, slots=True)
class Groups:
    """Process groups of one kind: ``members[g]`` are the ranks of group g."""

    name: str
    members: IntArray
    """[groups, size]."""

    def gather(self, values: FloatArray) -> FloatArray:
        """[scenarios, ranks] -> [scenarios, groups, size]."""
        return values[:, self.members]

    def scatter(self, values: FloatArray) -> FloatArray:
        """[scenarios, groups, size] -> [scenarios, ranks]."""
        out = np.empty((values.shape[0], self.members.size))
        out[:, self.members] = values
        return out


def groups_of(config: SimConfig) -> dict[str, Groups]:
    """``world``, ``ep`` (consecutive ranks) and ``edp`` (ranks that hold the same experts)."""
    ranks = np.arange(config.ranks)
    ep = ranks.reshape(-1, config.ep)
    return {"world": Groups("world", ranks[None]), "ep": Groups("ep", ep), "edp": Groups("edp", ep.T.copy())}


@dataclass(frozen=True, slots=True)
class Record:
    """When one operation ran, in the run itself (scenario 0); true time, ns, [ranks]."""

    op: Op
    step: int
    autograd: bool
    cpu_start: IntArray
    cpu_end: IntArray
    launch: IntArray
    start: IntArray
    """On the device."""
    end: IntArray
    together: FloatArray | None = None
    """How long a collective would have taken had all arrived at once, [ranks]."""


@dataclass(slots=True)
class Run:
    """What :func:`execute` yields."""

    records: list[Record] = field(default_factory=list)
    step_starts: list[FloatArray] = field(default_factory=list)
    """[scenarios, ranks] per step, and the end of the last one."""


@dataclass(slots=True)
class _State:
    cpu: FloatArray
    compute: FloatArray
    comm: dict[str, FloatArray]
    queue: list[FloatArray]


class Engine:
    """The state of all ranks, and how operations change it."""

    def __init__(self, config: SimConfig, scenarios: tuple[Scenario, ...]):
        shape = (len(scenarios), config.ranks)
        self.config, self.scenarios = config, scenarios
        self.groups = groups_of(config)
        zeros = np.zeros(shape)
        self.state = _State(zeros.copy(), zeros.copy(), {g: zeros.copy() for g in self.groups}, [])
        self.run = Run()
        hosts = np.arange(config.ranks) // config.ranks_per_host
        self._same_host = hosts[:, None] == hosts[None, :]

    def execute(self, program: Program, step: int) -> None:
        """Run one step."""
        rng = np.random.default_rng([self.config.seed, _ENGINE, step])
        host = np.exp(0.12 * rng.standard_normal((len(program.ops), self.config.ranks)))
        speed = 1 + self.config.kernel_noise * rng.standard_normal((len(program.ops), self.config.ranks))
        self.run.step_starts.append(self.state.cpu.copy())
        for index, op in enumerate(program.ops):
            self._issue(op, step, program.autograd[index], host[index], speed[index], rng)

    def finish(self) -> Run:
        """Close the last step."""
        self.run.step_starts.append(self.state.cpu.copy())
        return self.run

    def _issue(self, op: Op, step: int, autograd: bool, host: FloatArray, speed: FloatArray, rng: np.random.Generator) -> None:
        state = self.state
        cpu_start = state.cpu + _GAP_NS * host
        cpu_time = _CPU_NS[type(op)] * host + (op.duration_ns if isinstance(op, HostWork) else 0.0)
        launch = cpu_start + _LAUNCH_SHARE * cpu_time
        if len(state.queue) >= _QUEUE and not isinstance(op, HostWork):
            launch = np.maximum(launch, state.queue[-_QUEUE])
        cpu_end = launch + (1 - _LAUNCH_SHARE) * cpu_time
        together = None
        arrive = launch + _LAUNCH_LATENCY_NS
        match op:
            case Kernel():
                start = np.maximum(arrive, state.compute + _STREAM_GAP_NS)
                end = start + op.duration_ns * speed * self._compute_scale(step, start)
                state.compute = end
            case Exchange():
                start, end, together = self._exchange(op, arrive, rng)
            case Reduce():
                start, end, together = self._reduce(op, arrive, rng)
            case ReadBack() | Upload():
                start = np.maximum(arrive, state.compute + _STREAM_GAP_NS)
                end = start + 1_500.0 * speed + op.num_bytes / 25.0
                state.compute = end
                if isinstance(op, ReadBack):
                    cpu_end = np.maximum(cpu_end, end + _SYNC_NS * host)
            case _:
                start = end = launch
        if not isinstance(op, HostWork):
            state.queue.append(start)
        state.cpu = cpu_end
        self.run.records.append(Record(op, step, autograd, *(np.rint(a[0]).astype(np.int64) for a in (cpu_start, cpu_end, launch, start, end)),
                                       together))

    def _compute_scale(self, step: int, start: FloatArray) -> FloatArray:
        scale = np.ones(start.shape)
        for index, scenario in enumerate(self.scenarios):
            for fault in scenario.faults:
                scale[index] *= fault.compute_scale(self.config.ranks, step, start[index])
        return scale

    def _ready(self, group: str, arrive: FloatArray) -> FloatArray:
        """A collective starts when it is launched, its stream is free and the compute before it is done."""
        return np.maximum(np.maximum(arrive, self.state.comm[group] + _STREAM_GAP_NS), self.state.compute + _STREAM_GAP_NS)

    def _leave(self, group: str, end: FloatArray) -> None:
        """Later compute waits for the collective."""
        self.state.comm[group] = end
        self.state.compute = np.maximum(self.state.compute, end)

    def _exchange(self, op: Exchange, arrive: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray, FloatArray]:
        groups, network = self.groups["ep"], self.config.network
        noise = 1 + network.noise * rng.standard_normal((2, self.config.ranks))
        jitter = network.exit_jitter_ns * np.abs(rng.standard_normal(self.config.ranks))
        start = np.rint(self._ready("ep", arrive))
        sizes = (op.sent * op.row_bytes).astype(np.float64)
        members = groups.gather(start)
        batch = np.concatenate([members, np.broadcast_to(members[:1].max(2, keepdims=True), members[:1].shape)])
        ends = self._fluid(np.concatenate([sizes, sizes[:1]]), batch, noise)
        end = groups.scatter(ends[:-1]) + jitter
        alone = groups.scatter(ends[-1:] - batch[-1:])[0] + jitter
        self._leave("ep", end)
        return start, end, alone

    def _fluid(self, sizes: FloatArray, arrivals: FloatArray, noise: FloatArray) -> FloatArray:
        """Leave times [scenarios, groups, n] of the exchanges in all scenarios and groups."""
        network, groups = self.config.network, self.groups["ep"]
        scenarios, count, n = arrivals.shape
        same = self._same_host[groups.members[:, :, None], groups.members[:, None, :]]
        pairs = np.broadcast_to(same, (scenarios, count, n, n)).reshape(-1, n, n)
        intra = Tier(pairs, *self._ports(network.intra_bytes_per_ns, noise, scenarios), network.intra_latency_ns)
        inter = Tier(~pairs, *self._ports(network.inter_bytes_per_ns, noise, scenarios), network.inter_latency_ns)
        ends = exchange_ends(sizes.reshape(-1, n, n), arrivals.reshape(-1, n), (intra, inter), network.local_bytes_per_ns, network.resolution)
        return ends.reshape(arrivals.shape)

    def _ports(self, rate: float, noise: FloatArray, scenarios: int) -> Iterable[FloatArray]:
        members = self.groups["ep"].members
        for direction in noise:
            yield np.broadcast_to((rate * direction)[members], (scenarios, *members.shape)).reshape(-1, members.shape[1])

    def _reduce(self, op: Reduce, arrive: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray, FloatArray]:
        groups, network = self.groups[op.group], self.config.network
        jitter = network.exit_jitter_ns * np.abs(rng.standard_normal(self.config.ranks))
        start = np.rint(self._ready(op.group, arrive))
        members = groups.members
        spans_hosts = not self._same_host[members[:, :, None], members[:, None, :]].all()
        rate = network.inter_bytes_per_ns if spans_hosts else network.intra_bytes_per_ns
        latency = network.inter_latency_ns if spans_hosts else network.intra_latency_ns
        passes = 2 if op.collective == "allreduce" else 1
        n = members.shape[1]
        moved = passes * (n - 1) / n * op.elements * op.item_bytes
        duration = (latency + moved / rate) * np.ones(members.shape[0])
        last = groups.gather(start).max(2)
        end = groups.scatter(np.broadcast_to((last + duration)[:, :, None], (*last.shape, n))) + jitter
        alone = groups.scatter(np.broadcast_to(duration[None, :, None], (1, *members.shape)))[0] + jitter
        self._leave(op.group, end)
        return start, end, alone
