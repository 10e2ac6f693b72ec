"""Offsets between the ranks' clocks, by round trips over the process group (Cristian's method).

Rank 0 sends its time to a peer, the peer answers with its own, and half the round trip bounds the error. The ranks
first announce themselves in the store of the process group, with a time limit, so that a job in which only some
ranks observe, or in which one has died, skips the measurement instead of hanging in it.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

ROUNDS = 16
_meetings = itertools.count()
MAX_PEERS = 64


def default_store() -> Any:
    """The store of the default process group: every rank sees what one writes."""
    return dist.distributed_c10d._get_default_store()


def announce(key: str, facts: Mapping[str, Any], timeout_s: float) -> list[dict[str, Any]] | None:
    """Exchange ``facts`` among all ranks through the store; None when a rank does not come within the time limit.

    Rank 0 decides for all, so that the ranks agree on whether everyone is there. Meetings are numbered, so that a
    second observation of the same process does not meet the first.
    """
    store, rank, world = default_store(), dist.get_rank(), dist.get_world_size()
    key = f"{key}/{next(_meetings)}"
    store.set(f"{key}/{rank}", json.dumps(dict(facts)))
    verdict = f"{key}/verdict"
    try:
        if rank == 0:
            store.wait([f"{key}/{peer}" for peer in range(world)], timedelta(seconds=timeout_s))
            store.set(verdict, "all")
        else:
            store.wait([verdict], timedelta(seconds=timeout_s + 5))
    except (RuntimeError, ValueError):
        store.set(verdict, "missing")
        return None
    if store.get(verdict) != b"all":
        return None
    return [json.loads(store.get(f"{key}/{peer}")) for peer in range(world)]


def peers_to_measure(hosts: list[str], limit: int = MAX_PEERS) -> list[int]:
    """The ranks that rank 0 pings: all of a small job, else the first rank of every host."""
    if len(hosts) <= limit:
        return list(range(1, len(hosts)))
    first_rank = {host: rank for rank, host in reversed(list(enumerate(hosts)))}
    return sorted(rank for rank in first_rank.values() if rank != 0)


def best_round_trip(samples: list[tuple[int, int, int]]) -> tuple[int, int, int]:
    """(offset_ns, round_trip_ns, measured_at_ns) of the quickest of ``samples``: (sent, the peer's time, received)."""
    sent, theirs, received = min(samples, key=lambda s: s[2] - s[0])
    middle = (sent + received) // 2
    return theirs - middle, received - sent, middle


def measure(peers: list[int], when: str, group: dist.ProcessGroup | None = None) -> list[dict[str, Any]]:
    """Rows of the clock table on rank 0, none elsewhere; every rank of ``peers`` and rank 0 must call it.

    ``group``: a group of CPU tensors over all ranks; the default group if None.
    """
    rank = dist.get_rank()
    if rank != 0:
        if rank in peers:
            _answer(group)
        return []
    rows = []
    for peer in peers:
        offset_ns, round_trip_ns, measured_at_ns = best_round_trip(_ask(peer, group))
        rows.append(
            {
                "rank": 0,
                "peer": peer,
                "when": when,
                "offset_ns": offset_ns,
                "round_trip_ns": round_trip_ns,
                "measured_at_ns": measured_at_ns,
            }
        )
    return rows


def _ask(peer: int, group: dist.ProcessGroup | None) -> list[tuple[int, int, int]]:
    message, samples = torch.zeros(1, dtype=torch.int64), []
    for _ in range(ROUNDS):
        sent = time.time_ns()
        dist.send(message, peer, group=group)
        dist.recv(message, peer, group=group)
        received = time.time_ns()
        samples.append((sent, int(message[0]), received))
    return samples


def _answer(group: dist.ProcessGroup | None) -> None:
    message = torch.zeros(1, dtype=torch.int64)
    for _ in range(ROUNDS):
        dist.recv(message, 0, group=group)
        message[0] = time.time_ns()
        dist.send(message, 0, group=group)
