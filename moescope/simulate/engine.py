"""Runs a program on all ranks at once: CPU threads, launch queues, streams, collectives.

The programs of the ranks (of a pipeline stage) are the same, so the events are simulated in program order with vectors
over [scenarios, ranks] as state: when each CPU thread is free, when each stream is. Only communication couples ranks.
Times are nanoseconds of true time since the start of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from moescope.simulate.config import SimConfig
from moescope.simulate.fabric import Fabric
from moescope.simulate.groups import groups_of
from moescope.simulate.messages import Messages
from moescope.simulate.program import Copy, Exchange, HostWork, Join, Kernel, Op, Program, Reduce, Transfer
from moescope.simulate.scenario import Scenario

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_ENGINE = 2
_HOST_FAULTS = 6
_QUEUE = 1024
"""Launches that the driver accepts ahead of the device."""
_GAP_NS = 2_500.0
"""Python between two operations."""
_HOST_NOISE = 0.12
"""Spread of CPU times (sigma of their logarithm)."""
_CPU_NS = {Kernel: 8_000.0, Exchange: 42_000.0, Reduce: 42_000.0, Transfer: 36_000.0, Copy: 14_000.0, Join: 3_000.0}
_LAUNCH_SHARE = 0.4
"""How far into an operation the launch is."""
_LAUNCH_LATENCY_NS = 4_600.0
_STREAM_GAP_NS = 900.0
_COPY_NS = 1_500.0
_COPY_BYTES_PER_NS = 25.0
_SYNC_NS = 2_500.0


@dataclass(frozen=True, slots=True)
class Record:
    """When one operation ran in the run itself (scenario 0), [ranks]; entries of other stages' ranks mean nothing."""

    op: Op
    step: int
    cpu_start: IntArray
    cpu_end: IntArray
    launch: IntArray
    start: IntArray
    """On the device."""
    end: IntArray
    together: FloatArray | None = None
    """How long a collective would have taken had all arrived at once."""


@dataclass(slots=True)
class Run:
    """What the simulation yields."""

    records: list[Record] = field(default_factory=list)
    step_starts: list[FloatArray] = field(default_factory=list)
    """[scenarios, ranks] for each step, and the end of the last one."""


@dataclass(frozen=True, slots=True)
class _Draws:
    """One operation's random numbers, [ranks]; ``late`` is [scenarios, ranks]."""

    host: FloatArray
    """Factor on CPU times."""
    late: FloatArray | float
    """Additional CPU time of faults."""
    speed: FloatArray
    """Factor on device times."""


def _integers(times: FloatArray) -> IntArray:
    """The run's own times as integers."""
    return np.asarray(np.rint(times[0]), dtype=np.int64)


class Engine:
    """The state of all ranks, and how operations change it."""

    def __init__(self, config: SimConfig, scenarios: Sequence[Scenario]):
        shape = (len(scenarios), config.ranks)
        self.config, self.scenarios = config, scenarios
        self.groups = groups_of(config)
        self.fabric = Fabric(config, self.groups, scenarios)
        self.run = Run()
        self._cpu, self._compute = np.zeros(shape), np.zeros(shape)
        self._comm = {kind: np.zeros(shape) for kind in self.groups}
        self._queues: list[list[FloatArray]] = [[] for _ in range(config.pipeline)]
        self._stage = np.arange(config.ranks) // config.stage_ranks
        self._messages = Messages(config, self.fabric)
        self._pending: dict[int, FloatArray] = {}

    def execute(self, program: Program, step: int) -> None:
        """Run one step."""
        rng = np.random.default_rng([self.config.seed, _ENGINE, step])
        own = [not (isinstance(op, HostWork) and op.inserted) for op in program.ops]
        shape = (sum(own), self.config.ranks)
        host = np.exp(_HOST_NOISE * rng.standard_normal(shape))
        speed = 1 + self.config.kernel_noise * rng.standard_normal(shape)
        extra = self._host_extra(shape, step)
        self.run.step_starts.append(self._cpu.copy())
        for index, op in zip(np.cumsum(own) - 1, program.ops, strict=True):
            late = 0.0 if extra is None else extra[index]
            if op.stage is None:
                self._issue(op, step, _Draws(host[index], late, speed[index]), rng)
            else:
                self._issue_in_stage(op, step, _Draws(host[index], late, speed[index]), rng)
        self._queues = [queue[-_QUEUE:] for queue in self._queues]

    def finish(self) -> Run:
        """Close the last step."""
        self.run.step_starts.append(self._cpu.copy())
        return self.run

    def _host_extra(self, shape: tuple[int, int], step: int) -> FloatArray | None:
        """Additional CPU time of faults, [operations, scenarios, ranks]."""
        total: FloatArray | None = None
        for index, fault in enumerate(self.config.faults):
            extra = fault.host_extra_ns(shape, np.random.default_rng([self.config.seed, _HOST_FAULTS, index, step]))
            if extra is not None:
                present = np.array([float(fault in s.faults) for s in self.scenarios])
                here = present[None, :, None] * extra[:, None, :]
                total = here if total is None else total + here
        return total

    def _issue_in_stage(self, op: Op, step: int, draws: _Draws, rng: np.random.Generator) -> None:
        """The same for the ranks of one stage; the others' threads and streams stay as they were."""
        cpu, compute, comm = self._cpu, self._compute, self._comm.copy()
        self._issue(op, step, draws, rng)
        mine = self._stage == op.stage
        self._cpu, self._compute = np.where(mine, self._cpu, cpu), np.where(mine, self._compute, compute)
        self._comm = {kind: np.where(mine, free, comm[kind]) for kind, free in self._comm.items()}

    def _issue(self, op: Op, step: int, draws: _Draws, rng: np.random.Generator) -> None:
        if isinstance(op, HostWork):
            cpu_start, cpu_time = self._host_work(op, draws)
        else:
            cpu_start, cpu_time = self._cpu + _GAP_NS * draws.host, _CPU_NS[type(op)] * draws.host + draws.late
        launch = cpu_start + _LAUNCH_SHARE * cpu_time
        device = not isinstance(op, HostWork | Join)
        queues = self._queues if op.stage is None else [self._queues[op.stage]]
        for queue in queues:
            if device and len(queue) >= _QUEUE:
                launch = np.maximum(launch, queue[-_QUEUE])
        cpu_end = launch + (1 - _LAUNCH_SHARE) * cpu_time
        start, end, together = self._on_device(op, launch, draws.speed, rng)
        if device:
            for queue in queues:
                queue.append(start)
        if isinstance(op, Copy) and op.to_host:
            cpu_end = np.maximum(cpu_end, end + _SYNC_NS * draws.host)
        self._cpu = cpu_end
        cpu = _integers(cpu_start), _integers(cpu_end), _integers(launch)
        record = Record(op, step, *cpu, _integers(start), _integers(end), together)
        self.run.records.append(record)
        if isinstance(op, Transfer):
            self._messages.launch(record, op, start, rng)

    def _host_work(self, op: HostWork, draws: _Draws) -> tuple[FloatArray, FloatArray]:
        """Start and length; one with runtime calls waits until the device is idle."""
        length = np.broadcast_to(np.asarray(op.duration_ns, dtype=np.float64), self._cpu.shape)
        cpu_start = self._cpu if op.inserted else self._cpu + _GAP_NS * draws.host
        if op.calls:
            idle = np.maximum(self._compute, np.maximum.reduce(list(self._comm.values())))
            cpu_start = np.where(length > 0, np.maximum(cpu_start, idle), cpu_start)
        return cpu_start, length

    def _on_device(
        self, op: Op, launch: FloatArray, speed: FloatArray, rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray, FloatArray | None]:
        """Start and end on the device, and how long a collective takes when all arrive at once."""
        arrive = launch + _LAUNCH_LATENCY_NS
        match op:
            case Kernel():
                start = np.maximum(arrive, self._compute + _STREAM_GAP_NS)
                end = start + op.duration_ns * speed * self._compute_scale(start)
                self._compute = end
                return start, end, None
            case Copy():
                start = np.maximum(arrive, self._compute + _STREAM_GAP_NS)
                end = start + _COPY_NS * speed + op.num_bytes / _COPY_BYTES_PER_NS
                self._compute = end
                return start, end, None
            case Exchange():
                start = self._ready("ep", arrive)
                end, together = self.fabric.exchange((op.sent * op.row_bytes).astype(np.float64), start, rng)
                self._leave("ep", end, blocking=op.blocking)
                self._pending[id(op)] = end
                return start, end, together
            case Reduce():
                start = self._ready(op.group, arrive)
                end, together = self.fabric.reduce(op, start, rng)
                self._leave(op.group, end, blocking=True)
                return start, end, together
            case Transfer():
                ready = np.rint(np.maximum(arrive, self._compute + _STREAM_GAP_NS))
                return ready, ready, np.zeros(self.config.ranks)
            case Join():
                self._compute = np.maximum(self._compute, self._end_of(op.exchange))
        return launch, launch, None

    def _end_of(self, op: Exchange | Transfer) -> FloatArray:
        return self._messages.end(op) if isinstance(op, Transfer) else self._pending.pop(id(op))

    def _compute_scale(self, start: FloatArray) -> FloatArray | float:
        scale: FloatArray | None = None
        for index, scenario in enumerate(self.scenarios):
            for fault in scenario.faults:
                factor = fault.compute_scale(start[index])
                if factor is not None:
                    scale = np.ones(start.shape) if scale is None else scale
                    scale[index] *= factor
        return 1.0 if scale is None else scale

    def _ready(self, group: str, arrive: FloatArray) -> FloatArray:
        """A collective starts when it is launched, its stream is free and the compute before it is done."""
        free = np.maximum(self._comm[group], self._compute) + _STREAM_GAP_NS
        return np.rint(np.maximum(arrive, free))

    def _leave(self, group: str, end: FloatArray, *, blocking: bool) -> None:
        self._comm[group] = end
        if blocking:
            self._compute = np.maximum(self._compute, end)
