"""Telemetry and ``run.json`` of a simulated run, as the hooks write them: on each host's own clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from moescope_hooks.schema import TABLES, part_path
from numpy.typing import NDArray

from moescope import __version__
from moescope.simulate.clocks import EPOCH_NS
from moescope.simulate.config import SimConfig
from moescope.simulate.memory import parameters_of, state_bytes
from moescope.simulate.program import Transfer
from moescope.simulate.simulation import Simulation
from moescope.simulate.truth import CollectiveTruth

IntArray = NDArray[np.int64]
Clock = Callable[[IntArray], IntArray]

RUN_SCHEMA = "moescope.run/1"
_PING = 4


def write_telemetry(path: Path, simulation: Simulation, collectives: Sequence[CollectiveTruth]) -> None:
    """Write every rank's parts below ``path``."""
    config = simulation.config
    by_rank: dict[int, list[tuple[CollectiveTruth, int]]] = {rank: [] for rank in range(config.ranks)}
    for collective in collectives:
        if isinstance(collective.record.op, Transfer):
            continue  # the hooks see collectives alone
        for member, rank in enumerate(collective.ranks.tolist()):
            by_rank[rank].append((collective, member))
    for rank in range(config.ranks):
        clock = partial(simulation.clocks.local, host=config.host_of(rank))
        rows = {
            "expert_load": _expert_load(simulation, rank),
            "step": _steps(simulation, clock, rank),
            "collective": [_collective(clock, rank, c, member) for c, member in by_rank[rank]],
            "clock": _offsets(simulation) if rank == 0 and config.measured_clock else [],
        }
        for table, content in rows.items():
            if content:
                file = part_path(path / "telemetry", table, rank, 0)
                file.parent.mkdir(parents=True, exist_ok=True)
                pl.DataFrame(content, schema=dict(TABLES[table]), orient="row").write_parquet(file, compression="zstd")


def _expert_load(simulation: Simulation, rank: int) -> list[dict[str, Any]]:
    first = simulation.config.first_step
    config = simulation.config
    held = config.layers_of(config.stage_of(rank)) if config.pipeline > 1 else config.model.moe_layers
    return [
        {"rank": rank, "step": step, "microbatch": mb.index, "layer": layer, "counts": drawn[0].counts[rank].tolist()}
        for step, microbatches in enumerate(simulation.steps, first)
        for mb in microbatches
        for layer, drawn in mb.routing.items()
        if layer in held
    ]


def _steps(simulation: Simulation, clock: Clock, rank: int) -> list[dict[str, Any]]:
    config = simulation.config
    local = clock(np.rint([s[0, rank] for s in simulation.run.step_starts]).astype(np.int64)).tolist()
    memory = simulation.memory[rank]
    parameters = parameters_of(config, rank)
    return [
        {
            "rank": rank,
            "step": config.first_step + index,
            "start_ns": local[index],
            "end_ns": local[index + 1],
            "tokens": config.tokens * config.microbatches,
            "memory_allocated_peak_bytes": memory.peak,
            "memory_reserved_peak_bytes": memory.reserved,
            "parameter_bytes": 2 * parameters,
            "gradient_bytes": 2 * parameters,
            "optimizer_bytes": state_bytes(config, rank) - 4 * parameters,
        }
        for index in range(config.steps)
    ]


def _collective(clock: Clock, rank: int, truth: CollectiveTruth, member: int) -> dict[str, Any]:
    span = truth.record.op.span
    start, end = clock(np.array([truth.start[member], truth.end[member]])).tolist()
    return {
        "rank": rank,
        "step": truth.record.step,
        "microbatch": span.microbatch if span else None,
        "layer": span.layer if span else None,
        "phase": span.phase if span else None,
        "backward": bool(span and span.backward),
        "group": truth.group,
        "seq": truth.position,
        "send_bytes": truth.sent[member].tolist(),
        "recv_bytes": truth.received[member].tolist(),
        "arrival_ns": start,
        "end_ns": end,
    }


def _offsets(simulation: Simulation) -> list[dict[str, Any]]:
    """Rank 0 pings the first rank of every other host, at the start and at the end; the ways there and back differ."""
    config, clocks, run = simulation.config, simulation.clocks, simulation.run
    rng = np.random.default_rng([config.seed, _PING])
    rows = []
    for when, true in (("start", run.step_starts[0][0, 0]), ("end", run.step_starts[-1][0, 0])):
        at = np.array([int(true)])
        for host in range(1, config.num_hosts):
            there, back = 18_000 + rng.exponential(6_000.0, 2)
            mine, theirs = (int(clocks.local(at, h)[0]) for h in (0, host))
            row = {"rank": 0, "peer": host * config.ranks_per_host, "when": when, "measured_at_ns": mine}
            row["offset_ns"] = theirs - mine + int((there - back) / 2)
            rows.append({**row, "round_trip_ns": int(there + back) + 2})
    return rows


def run_info(config: SimConfig) -> dict[str, Any]:
    """The content of ``run.json``."""
    model, device = config.model, config.device
    groups = np.arange(config.ranks).reshape(-1, config.ep).tolist()
    per_member = config.num_experts // config.ep
    return {
        "schema": RUN_SCHEMA,
        "basis": "simulated",
        "name": config.name,
        "created": datetime.fromtimestamp(EPOCH_NS // 1_000_000_000, UTC).isoformat(timespec="seconds"),
        "command": ["moescope", "simulate", *config.arguments()],
        "git_commit": None,
        "versions": {"moescope": __version__},
        "hosts": [
            {"host": config.host_name(h), "ranks": [r for r in range(config.ranks) if config.host_of(r) == h]}
            for h in range(config.num_hosts)
        ],
        "devices": [{"rank": r, "name": device.name, "memory_bytes": device.memory_bytes} for r in range(config.ranks)],
        "model": {
            "layers": model.num_layers,
            "dense_layers": model.num_dense_layers,
            "hidden": model.hidden,
            "experts": config.num_experts,
            "top_k": model.top_k,
            "expert_hidden": model.expert_hidden,
            "dense_hidden": model.dense_hidden,
            "vocabulary": model.vocabulary,
            "dtype": "bfloat16",
        },
        "parallel": {
            "world_size": config.ranks,
            "ep_size": config.ep,
            "ep_groups": groups,
            "expert_placement": [e // per_member for e in range(config.num_experts)],
            **({"pp_size": config.pipeline} if config.pipeline > 1 else {}),
        },
        "train": {"steps": config.steps, "microbatches": config.microbatches, "tokens_per_microbatch": config.tokens},
        "data": {"files": []},
        "seeds": {"simulation": config.seed},
        "controls": [f"fault: {fault.describe()}" for fault in config.faults],
        "result": {},
    }
