"""Timing calls on the device: a few to warm up, then as many as fit the time, the same number on every rank."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

WARM_UP_CALLS = 2
MIN_CALLS, MAX_CALLS = 3, 200
NUM_BATCHES = 5


def synchronise(device: torch.device) -> None:
    """Wait for everything the device was asked to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def mean_ns(call: Callable[[], object], device: torch.device, seconds: float) -> tuple[float, int]:
    """(time of a call, number of calls); on all ranks together where there is a process group.

    The number follows the slowest rank's first timed call, so that ranks stay together in collectives. Calls are timed
    in up to NUM_BATCHES batches; the time is the median batch's mean, which one disturbance does not move.
    """
    for _ in range(WARM_UP_CALLS):
        call()
    first = _elapsed_ns(call, device, 1)
    count = _agreed_count(first, device, seconds)
    size = max(count // NUM_BATCHES, 1)
    batches = [_elapsed_ns(call, device, size) / size for _ in range(min(count, NUM_BATCHES))]
    return statistics.median(batches), size * len(batches)


def _agreed_count(first_ns: float, device: torch.device, seconds: float) -> int:
    slowest = torch.tensor([first_ns], dtype=torch.float32, device=device)
    if dist.is_initialized():
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return int(min(max(seconds * 1e9 / max(float(slowest.item()), 1.0), MIN_CALLS), MAX_CALLS))


def _elapsed_ns(call: Callable[[], object], device: torch.device, count: int) -> float:
    synchronise(device)
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(count):
            call()
        end.record()
        synchronise(device)
        return float(start.elapsed_time(end)) * 1e6
    begun = time.perf_counter_ns()
    for _ in range(count):
        call()
    return float(time.perf_counter_ns() - begun)


def over_ranks(value: float, device: torch.device) -> list[float]:
    """Every rank's value, in the order of the ranks."""
    if not dist.is_initialized():
        return [value]
    own = torch.tensor([value], dtype=torch.float64 if device.type == "cpu" else torch.float32, device=device)
    every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(every, own)
    return [float(one.item()) for one in every]
