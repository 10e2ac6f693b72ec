"""Simulate a run and write its directory."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
from isal import igzip
from numpy.typing import NDArray

from moescope.simulate import kineto
from moescope.simulate.config import SimConfig
from moescope.simulate.engine import Engine, Record, Run
from moescope.simulate.kineto import RankTrace, group_names
from moescope.simulate.scenario import scenarios_of
from moescope.simulate.step import build_step
from moescope.simulate.truth import HostClocks, host_clocks, truth_of

IntArray = NDArray[np.int64]


def simulate(config: SimConfig, out: str | os.PathLike[str]) -> Path:
    """Simulate ``config`` and write the run directory ``out``; returns its path."""
    path = Path(out)
    scenarios = scenarios_of(config)
    engine = Engine(config, scenarios)
    for index in range(config.steps):
        step = config.first_step + index
        program, _ = build_step(config, scenarios, step)
        engine.execute(program, step)
    run = engine.finish()
    clocks = host_clocks(config)
    names = [group_names(config, engine.groups, rank) for rank in range(config.ranks)]
    (path / "traces").mkdir(parents=True, exist_ok=True)
    for rank in range(config.ranks):
        text = trace_text(config, run, clocks, RankTrace(config, rank, names[rank]))
        _write(path / "traces" / f"rank{rank}.json.gz", igzip.compress(text.encode(), compresslevel=1, mtime=0))
    truth = truth_of(config, engine, run, scenarios, clocks, names)
    _write(path / "truth.json", json.dumps(truth, separators=(",", ":")).encode())
    return path


def trace_text(config: SimConfig, run: Run, clocks: HostClocks, trace: RankTrace) -> str:
    """One rank's trace."""
    rank = trace.rank
    true = np.stack([[r.cpu_start[rank], r.cpu_end[rank], r.launch[rank], r.start[rank], r.end[rank]] for r in run.records])
    local = clocks.local(true, config.host_of(rank)) - kineto.BASE_NS
    starts = np.rint([s[0, rank] for s in run.step_starts]).astype(np.int64)
    steps = (clocks.local(starts, config.host_of(rank)) - kineto.BASE_NS).tolist()
    for index in range(config.steps):
        at = [i for i, r in enumerate(run.records) if r.step == config.first_step + index]
        rows: list[Record] = run.records[at[0]:at[-1] + 1]
        times = local[at[0]:at[-1] + 1]
        kineto.write_step(trace, config.first_step + index, steps[index], steps[index + 1], rows, times)
        if config.hooks:
            kineto.write_spans(trace, rows, times)
        kineto.write_ops(trace, rows, times)
    return kineto.finish(trace, steps[0] - 50_000, int(max(steps[-1], local.max())) + 50_000)


def _write(path: Path, data: bytes) -> None:
    """Write beside, then rename: no half-written file survives an interrupt."""
    beside = path.with_name(path.name + ".part")
    beside.write_bytes(data)
    beside.replace(path)
