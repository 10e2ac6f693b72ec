"""What every rank does for a baseline, and the JSON that rank 0 writes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from moescope_hooks.writer import write_atomically
from torch.distributed.elastic.multiprocessing.errors import record

from moescope.baseline.copies import measure_host_device, measure_launch, measure_memory
from moescope.baseline.environment import describe_hosts, describe_ranks
from moescope.baseline.exchanges import measure_collectives
from moescope.baseline.plan import Plan
from moescope.baseline.products import measure_products
from moescope.launch import say, say_nothing

SCHEMA = "moescope.baseline/1"
TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Job:
    """What the launcher hands to every rank. ``imported``: collectives read from nccl-tests' output."""

    plan: Plan
    out: Path
    command: tuple[str, ...]
    imported: tuple[dict[str, Any], ...] = ()


@record
def run_rank(job: Job) -> None:
    """Join the ranks, measure, and write the file on rank 0."""
    device = join()
    try:
        measure(job, device)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def join() -> torch.device:
    """This rank's device: NCCL where every local rank has a GPU, else gloo on its share of the cores."""
    local_rank, local_ranks = (int(os.environ.get(name, default)) for name, default in _LOCAL)
    if torch.cuda.is_available() and torch.cuda.device_count() >= local_ranks:
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", timeout=TIMEOUT, device_id=device)
        return device
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // local_ranks))
    dist.init_process_group("gloo", timeout=TIMEOUT)
    return torch.device("cpu")


_LOCAL = (("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1"))


def measure(job: Job, device: torch.device) -> None:
    """All parts of the plan, in order; every rank takes part, rank 0 writes."""
    plan = job.plan.resolved(on_gpu=device.type == "cuda")
    rank = dist.get_rank()
    begun = time.monotonic()
    ranks, hosts = describe_ranks(rank), describe_hosts()
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "basis": "measured",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": list(job.command),
        "world_size": dist.get_world_size(),
        "backend": dist.get_backend(),
        "device": ranks[0]["device"],
        "plan": asdict(plan),
        "ranks": ranks,
        "hosts": hosts,
    }
    tell = say if rank == 0 else say_nothing
    found |= {"gemm": [], "collectives": [], "memory": None, "copies": [], "launch": None}
    for part in plan.parts:
        tell(f"measuring {part}")
        found |= _MEASURES[part](plan, device)
    found["collectives"] += list(job.imported)
    found["seconds"] = round(time.monotonic() - begun, 3)
    if rank == 0:
        write_atomically(job.out, lambda path: path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8"))


def _copies(plan: Plan, device: torch.device) -> dict[str, Any]:
    return {
        "memory": measure_memory(plan, device),
        "copies": measure_host_device(plan, device),
        "launch": measure_launch(device),
    }


_MEASURES: dict[str, Callable[[Plan, torch.device], dict[str, Any]]] = {
    "gemm": lambda plan, device: {"gemm": measure_products(plan, device)},
    "collectives": lambda plan, device: {"collectives": measure_collectives(plan, device)},
    "copies": _copies,
}
