"""Collectives over message sizes, with the columns and definitions of NVIDIA's nccl-tests.

``size_bytes`` S is the size of the whole buffer: the one reduced, gathered into, scattered, or sent by a rank.
``count`` are the elements of a rank's part where the buffer is divided, else of the buffer. With t the time of a call
on the slowest rank, ``algbw`` = S / t and ``busbw`` = algbw times 2 (n - 1) / n for an all-reduce and (n - 1) / n for
the others, so that it compares with the links' speed. Of an uneven exchange (all_to_allv, whose rank 0 gets twice what
the others get) busbw is the most bytes that any rank sends to others or receives from them, over t. ``wrong`` counts
wrong elements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from moescope.baseline.plan import Plan
from moescope.baseline.timing import mean_ns, over_ranks

_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""New names first: recent versions of torch warn of the old ones."""

ITEM_BYTES = 4
"""float32, whatever the products' type: every sum below is exact in it."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One collective of one size, ready to run: ``call`` moves zeros; ``wrong`` moves numbers and counts wrong ones."""

    size_bytes: int
    count: int
    bus_bytes: float
    """What busbw counts as moved."""
    call: Callable[[], object]
    wrong: Callable[[], int]


def measure_collectives(plan: Plan, device: torch.device) -> list[dict[str, Any]]:
    """One row per collective, size and placement (in place or not); empty with one rank."""
    if not dist.is_initialized() or dist.get_world_size() < 2:
        return []
    return [
        _row(name, size, plan, device, in_place=in_place)
        for name in plan.collectives
        for size in plan.sizes()
        for in_place in PLACEMENTS[name]
    ]


def _row(name: str, size: int, plan: Plan, device: torch.device, *, in_place: bool) -> dict[str, Any]:
    exchange = MAKERS[name](max(size // ITEM_BYTES, 1), device, in_place)
    wrong = sum(over_ranks(exchange.wrong(), device))
    time_ns, calls = mean_ns(exchange.call, device, plan.seconds)
    slowest = max(over_ranks(time_ns, device))
    return {
        "collective": name,
        "in_place": in_place,
        "ranks": dist.get_world_size(),
        "size_bytes": exchange.size_bytes,
        "count": exchange.count,
        "dtype": "float",
        "time_us": slowest / 1e3,
        "algbw_gb_per_s": exchange.size_bytes / slowest,
        "busbw_gb_per_s": exchange.bus_bytes / slowest,
        "wrong": round(wrong),
        "calls": calls,
    }


def _exchange(
    sizes: tuple[int, int, float],
    sent: tuple[Tensor, Tensor | float],
    received: tuple[Tensor, Tensor | float],
    call: Callable[[], object],
) -> Exchange:
    """``sizes``: bytes, count, bytes on the bus. ``sent``: a buffer and its values, which must give ``received``."""
    (source, values), (target, expected) = sent, received

    def wrong() -> int:
        target.fill_(-1.0)
        source.copy_(values) if isinstance(values, Tensor) else source.fill_(values)
        call()
        found = int((target != expected).sum().item())
        source.zero_()
        return found

    return Exchange(*sizes, call, wrong)


def _all_reduce(items: int, device: torch.device, in_place: bool) -> Exchange:  # noqa: ARG001 - torch has no other form
    rank, n = dist.get_rank(), dist.get_world_size()
    buffer = torch.zeros(items, device=device)
    size = items * ITEM_BYTES
    sizes = (size, items, size * 2 * (n - 1) / n)
    return _exchange(sizes, (buffer, rank + 1.0), (buffer, n * (n + 1) / 2), lambda: dist.all_reduce(buffer))


def _all_gather(items: int, device: torch.device, in_place: bool) -> Exchange:
    rank, n = dist.get_rank(), dist.get_world_size()
    part = max(items // n, 1)
    whole = torch.zeros(part * n, device=device)
    mine = whole[rank * part : (rank + 1) * part] if in_place else torch.zeros(part, device=device)
    expected = torch.arange(1.0, n + 1, device=device).repeat_interleave(part)
    size = part * n * ITEM_BYTES
    sizes = (size, part, size * (n - 1) / n)
    return _exchange(sizes, (mine, rank + 1.0), (whole, expected), lambda: _gather(whole, mine))


def _reduce_scatter(items: int, device: torch.device, in_place: bool) -> Exchange:
    rank, n = dist.get_rank(), dist.get_world_size()
    part = max(items // n, 1)
    whole = torch.zeros(part * n, device=device)
    mine = whole[rank * part : (rank + 1) * part] if in_place else torch.zeros(part, device=device)
    size = part * n * ITEM_BYTES
    sizes = (size, part, size * (n - 1) / n)
    return _exchange(sizes, (whole, rank + 1.0), (mine, n * (n + 1) / 2), lambda: _scatter(mine, whole))


def _all_to_all(items: int, device: torch.device, in_place: bool) -> Exchange:  # noqa: ARG001
    rank, n = dist.get_rank(), dist.get_world_size()
    part = max(items // n, 1)
    peers = torch.arange(n, device=device, dtype=torch.float32)
    sent, received = torch.zeros(part * n, device=device), torch.empty(part * n, device=device)
    size = part * n * ITEM_BYTES
    sizes = (size, part, size * (n - 1) / n)
    values, expected = (rank * n + peers).repeat_interleave(part), (peers * n + rank).repeat_interleave(part)
    return _exchange(sizes, (sent, values), (received, expected), lambda: dist.all_to_all_single(received, sent))


def _all_to_allv(items: int, device: torch.device, in_place: bool) -> Exchange:  # noqa: ARG001
    """Every rank sends rank 0 twice what it sends each of the others."""
    rank, n = dist.get_rank(), dist.get_world_size()
    unit = max(items // (n + 1), 1)
    outgoing = [2 * unit] + [unit] * (n - 1)
    incoming = [outgoing[rank]] * n
    peers = torch.arange(n, device=device, dtype=torch.float32)
    sent, received = torch.zeros(sum(outgoing), device=device), torch.empty(sum(incoming), device=device)
    values = (rank * n + peers).repeat_interleave(torch.tensor(outgoing, device=device))
    expected = (peers * n + rank).repeat_interleave(incoming[0])
    busiest = max(2 * (n - 1), n) * unit
    sizes = (sum(outgoing) * ITEM_BYTES, unit, float(busiest * ITEM_BYTES))
    return _exchange(
        sizes, (sent, values), (received, expected), lambda: dist.all_to_all_single(received, sent, incoming, outgoing)
    )


MAKERS: dict[str, Callable[[int, torch.device, bool], Exchange]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "all_to_allv": _all_to_allv,
}
PLACEMENTS = {
    "all_reduce": (True,),
    "all_gather": (False, True),
    "reduce_scatter": (False, True),
    "all_to_all": (False,),
    "all_to_allv": (False,),
}
"""Whether each is measured out of place, in place or both: what torch can do."""
