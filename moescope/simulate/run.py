"""Write a simulated run's directory."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
from isal import igzip
from numpy.typing import NDArray

from moescope.simulate.config import SimConfig
from moescope.simulate.engine import Record
from moescope.simulate.envelope import trace_file
from moescope.simulate.events import BASE_NS, EventLog
from moescope.simulate.faults import LostEvents, MissingRanks
from moescope.simulate.kineto import RankTrace
from moescope.simulate.memory import RankMemory
from moescope.simulate.program import Communication
from moescope.simulate.simulation import Progress, Simulation, run_simulation
from moescope.simulate.telemetry import run_info, write_telemetry
from moescope.simulate.truth import collectives, truth_of

IntArray = NDArray[np.int64]

_LOST = 7
_MARGIN_NS = 50_000
"""The profiler is active a little before the first step and after the last."""


def simulate(config: SimConfig, out: str | os.PathLike[str], progress: Progress | None = None) -> Path:
    """Simulate ``config`` and write the run directory ``out``; returns its path.

    It holds ``traces/``, ``telemetry/`` (with ``config.hooks``), ``run.json`` and ``truth.json``. The same
    configuration gives the same bytes.
    """
    path = Path(out)
    simulation = run_simulation(config, progress)
    missing = {r for fault in config.faults if isinstance(fault, MissingRanks) for r in fault.listed()}
    (path / "traces").mkdir(parents=True, exist_ok=True)
    _write(path / "run.json", (json.dumps(run_info(config), indent=2) + "\n").encode())
    for rank in range(config.ranks):
        if rank in missing:
            continue
        if progress:
            progress(rank, config.ranks, f"rank {rank}")
        data = igzip.compress(trace_text(simulation, rank).encode(), compresslevel=1, mtime=0)
        _write(path / "traces" / f"rank{rank}.json.gz", data)
    found = collectives(simulation.groups, simulation.run.records)
    if config.hooks:
        write_telemetry(path, simulation, found)
    truth = truth_of(simulation, found)
    _write(path / "truth.json", json.dumps(truth, separators=(",", ":")).encode())
    return path


def trace_text(simulation: Simulation, rank: int) -> str:
    """One rank's trace file."""
    config, run, groups = simulation.config, simulation.run, simulation.groups
    records, host = simulation.records_of(rank), config.host_of(rank)
    log = EventLog(pid=2_000 + 31 * rank, device=rank % config.ranks_per_host, num_sms=config.device.num_sms)
    late, lost = _losses(config, records, rank)
    trace = RankTrace(rank, groups, log, lost, late)
    true = np.array([[a[rank] for a in (r.cpu_start, r.cpu_end, r.launch, r.start, r.end)] for r in records])
    local = simulation.clocks.local(true, host) - BASE_NS
    borders = np.rint([s[0, rank] for s in run.step_starts]).astype(np.int64)
    steps = (simulation.clocks.local(borders, host) - BASE_NS).tolist()
    of_step = np.array([r.step for r in records])
    for index in range(config.steps):
        at = np.flatnonzero(of_step == config.first_step + index)
        low, high = int(at[0]), int(at[-1]) + 1
        name = f"ProfilerStep#{config.first_step + index}"
        external = log.cpu(name, False, (steps[index], steps[index + 1]), category="user_annotation")
        trace.device_ranges(name, records[low:high], local[low:high], external)
        if config.hooks:
            trace.ranges(records[low:high], local[low:high], low)
        trace.write(records[low:high], local[low:high], low)
    _write_memory(log, simulation.memory[rank], records, local, late)
    last = max(steps[-1], int(local.max()))
    return trace_file(config, groups, rank, log, (steps[0] - _MARGIN_NS, last + _MARGIN_NS))


def _write_memory(log: EventLog, memory: RankMemory, records: list[Record], local: IntArray, late: int) -> None:
    """Append the allocator's events, just after the CPU operation began that asked for them."""
    begins, launches = local[:, 0].tolist(), local[:, 2].tolist()
    for event in memory.events:
        if event.index >= late:
            at = begins[event.index] + (launches[event.index] - begins[event.index]) // 4
            autograd = records[event.index].op.autograd
            log.memory(autograd, at, event.num_bytes, event.address, (event.allocated, memory.reserved))


def _losses(config: SimConfig, records: list[Record], rank: int) -> tuple[int, frozenset[int]]:
    """How many operations came before the profiler began, and the operations whose device events it lost."""
    comm = [i for i, r in enumerate(records) if isinstance(r.op, Communication)]
    late, lost = 0, frozenset[int]()
    for index, fault in enumerate(config.faults):
        if isinstance(fault, LostEvents) and fault.rank in {rank, -1}:
            if fault.which == "first":
                late = max(late, comm[min(fault.count, len(comm)) - 1] + 1)
            else:
                rng = np.random.default_rng([config.seed, _LOST, index, rank])
                lost |= frozenset(rng.choice(comm, min(fault.count, len(comm)), replace=False).tolist())
    return late, lost


def _write(path: Path, data: bytes) -> None:
    """Write beside, then rename: no half-written file survives an interrupt."""
    beside = path.with_name(path.name + ".part")
    try:
        beside.write_bytes(data)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
