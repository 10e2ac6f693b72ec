"""The rate of matrix products against their rows, single and grouped, on all ranks at once."""

from __future__ import annotations

import statistics
from typing import Any

import torch
from torch import Tensor

from moescope.baseline.plan import Plan
from moescope.baseline.timing import mean_ns, over_ranks


def measure_products(plan: Plan, device: torch.device) -> list[dict[str, Any]]:
    """One row per weight, rows and kind; times are the median rank's, ``by_rank_ns`` everybody's."""
    found = []
    for n, k in plan.shapes:
        for m in plan.rows:
            found.append(_single(plan, device, m, n, k))
            if (grouped := _grouped(plan, device, m, n, k)) is not None:
                found.append(grouped)
    return found


def _random(shape: tuple[int, ...], plan: Plan, device: torch.device) -> Tensor:
    return torch.randn(shape, device=device, dtype=torch.float32).to(getattr(torch, plan.dtype))


def _single(plan: Plan, device: torch.device, m: int, n: int, k: int) -> dict[str, Any]:
    left, right = _random((m, k), plan, device), _random((k, n), plan, device)
    out = torch.empty((m, n), dtype=left.dtype, device=device)
    time_ns, calls = mean_ns(lambda: torch.mm(left, right, out=out), device, plan.seconds)
    return _row("gemm", plan, (1, m, n, k), (time_ns, calls), device)


def _grouped(plan: Plan, device: torch.device, m: int, n: int, k: int) -> dict[str, Any] | None:
    """All groups in one call, with ``m`` rows each; None where this torch has no such call for the device and type."""
    operation = getattr(torch, "_grouped_mm", None)
    if operation is None or plan.groups < 2:
        return None
    left, right = _random((plan.groups * m, k), plan, device), _random((plan.groups, k, n), plan, device)
    ends = torch.arange(1, plan.groups + 1, device=device, dtype=torch.int32) * m
    try:
        operation(left, right, offs=ends)
    except (RuntimeError, NotImplementedError, TypeError):
        return None
    time_ns, calls = mean_ns(lambda: operation(left, right, offs=ends), device, plan.seconds)
    return _row("grouped", plan, (plan.groups, m, n, k), (time_ns, calls), device)


def _row(
    kind: str, plan: Plan, shape: tuple[int, int, int, int], timed: tuple[float, int], device: torch.device
) -> dict[str, Any]:
    """``shape``: groups, m, n, k of each group's product; ``timed``: ns of a call, number of calls."""
    time_ns, calls = timed
    by_rank = over_ranks(time_ns, device)
    middle = statistics.median(by_rank)
    groups, m, n, k = shape
    return {
        "kind": kind,
        "dtype": plan.dtype,
        "groups": groups,
        "rows": m,
        "n": n,
        "k": k,
        "time_ns": middle,
        "rate_tflops": 2 * groups * m * n * k / middle / 1e3,
        "calls": calls,
        "by_rank_ns": by_rank,
    }
