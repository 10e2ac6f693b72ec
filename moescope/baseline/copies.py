"""Memory bandwidth, copies between host and device, and what it takes to launch nothing much."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from moescope.baseline.plan import Plan
from moescope.baseline.timing import mean_ns, over_ranks, synchronise

GPU_BYTES, CPU_BYTES = 1 << 30, 1 << 26
HOST_DEVICE_BYTES = (1 << 20, 1 << 26, 1 << 28)
NUM_LAUNCHES = 1000


def measure_memory(plan: Plan, device: torch.device) -> dict[str, Any]:
    """Bandwidth of copying a large buffer on the device: what is read and what is written both count."""
    size = GPU_BYTES if device.type == "cuda" else CPU_BYTES
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    time_ns, calls = mean_ns(lambda: target.copy_(source), device, plan.seconds)
    rates = over_ranks(2 * size / time_ns, device)
    return {"size_bytes": size, "gb_per_s": statistics.median(rates), "by_rank_gb_per_s": rates, "calls": calls}


def measure_host_device(plan: Plan, device: torch.device) -> list[dict[str, Any]]:
    """Copies between pinned host memory and the device; none on a CPU, where there is only one memory."""
    if device.type != "cuda":
        return []
    found = []
    for size in HOST_DEVICE_BYTES:
        host = torch.ones(size, dtype=torch.uint8).pin_memory()
        there = torch.empty(size, dtype=torch.uint8, device=device)
        ways = {"h2d": (there, host), "d2h": (host, there)}
        for direction, (target, source) in ways.items():
            time_ns, calls = mean_ns(_copy(target, source), device, plan.seconds)
            rates = over_ranks(size / time_ns, device)
            found.append(
                {"direction": direction, "size_bytes": size, "gb_per_s": statistics.median(rates)}
                | {"by_rank_gb_per_s": rates, "calls": calls}
            )
    return found


def _copy(target: torch.Tensor, source: torch.Tensor) -> Any:
    return lambda: target.copy_(source, non_blocking=True)


def measure_launch(device: torch.device) -> dict[str, Any]:
    """Host time of launching one small operation, and of launching and waiting for it, ns."""
    one = torch.zeros(1, device=device)
    for _ in range(NUM_LAUNCHES // 10):
        one.add_(1)
    synchronise(device)
    begun = time.perf_counter_ns()
    for _ in range(NUM_LAUNCHES):
        one.add_(1)
    launched = (time.perf_counter_ns() - begun) / NUM_LAUNCHES
    synchronise(device)
    begun = time.perf_counter_ns()
    for _ in range(NUM_LAUNCHES // 10):
        one.add_(1)
        synchronise(device)
    waited = (time.perf_counter_ns() - begun) / (NUM_LAUNCHES // 10)
    every_launch, every_wait = over_ranks(launched, device), over_ranks(waited, device)
    return {
        "launch_ns": statistics.median(every_launch),
        "round_trip_ns": statistics.median(every_wait),
        "by_rank_launch_ns": every_launch,
        "by_rank_round_trip_ns": every_wait,
    }
