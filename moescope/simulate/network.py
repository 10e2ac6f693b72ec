"""A fluid network: transfers share ports max-min fairly and finish one by one.

Every rank has four ports: send and receive inside its host (NVLink, shared memory), send and receive between
hosts (its network card). A transfer from i to j starts once both ranks have arrived, and at any moment the rates
are max-min fair: no transfer can be sped up without slowing one that is not faster. Rates change when a transfer
starts or ends, so the whole exchange is an event simulation, here advanced for a batch of exchanges in lockstep.

Arrays are indexed [B, n, n] for (exchange, sender, receiver); times are float nanoseconds, capacities bytes per ns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

_TOLERANCE = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class Tier:
    """The ports of one tier: which pairs use it, what each port carries, how long a first byte takes."""

    pairs: BoolArray
    """[n, n] or [B, n, n]: pairs of ranks whose transfers use this tier."""
    send: FloatArray
    """[B, n] bytes per ns."""
    receive: FloatArray
    """[B, n] bytes per ns."""
    latency_ns: float


def max_min_rates(active: BoolArray, send: FloatArray, receive: FloatArray) -> FloatArray:
    """Max-min fair rates [B, n, n] of the active transfers, given port capacities [B, n].

    Progressive filling. A port whose equal share is no larger than that of any port its transfers cross
    is a bottleneck whatever happens elsewhere, so all such ports are settled in one round.
    """
    rates = np.zeros(active.shape)
    rows = np.flatnonzero(active.any((1, 2)))
    unsettled, left_send, left_receive = active[rows], send[rows], receive[rows]
    with np.errstate(divide="ignore", invalid="ignore"):
        while len(rows):
            weight = unsettled.astype(np.float64)
            share_send = left_send / np.add.reduce(weight, 2)
            share_receive = left_receive / np.add.reduce(weight, 1)
            by_sender = np.where(unsettled, share_send[:, :, None], np.inf)
            by_receiver = np.where(unsettled, share_receive[:, None, :], np.inf)
            send_settles = share_send <= np.minimum.reduce(by_receiver, 2) * _TOLERANCE
            receive_settles = share_receive <= np.minimum.reduce(by_sender, 1) * _TOLERANCE
            settled = unsettled & (send_settles[:, :, None] | receive_settles[:, None, :])
            newly = np.where(settled, np.minimum(by_sender, by_receiver), 0.0)
            rates[rows] += newly
            unsettled &= ~settled
            going = unsettled.any((1, 2))
            left_send = np.maximum(left_send - np.add.reduce(newly, 2), 0.0)[going]
            left_receive = np.maximum(left_receive - np.add.reduce(newly, 1), 0.0)[going]
            rows, unsettled = rows[going], unsettled[going]
    return rates


def finish_times(
    sizes: FloatArray, ready: FloatArray, send: FloatArray, receive: FloatArray, quantum_ns: FloatArray | float = 0.0
) -> FloatArray:
    """When each transfer ends: [B, n, n], -inf where nothing is sent.

    ``ready`` [B, n, n] is when each transfer may start. Ends that fall within ``quantum_ns`` of the next one
    are found without sharing out the capacity they free in between; 0 is exact.
    """
    left = sizes.copy()
    finish = np.full(sizes.shape, -np.inf)
    pending = sizes > 0
    now = np.where(pending.any((1, 2)), np.where(pending, ready, np.inf).min((1, 2)), 0.0)
    quantum = np.broadcast_to(np.asarray(quantum_ns, dtype=np.float64), now.shape)
    while pending.any():
        clock = now[:, None, None]
        active = pending & (ready <= clock)
        rates = max_min_rates(active, send, receive)
        with np.errstate(divide="ignore", invalid="ignore"):
            need = np.where(active, left / rates, np.inf)
        next_start = np.where(pending & ~active, ready, np.inf).min((1, 2)) - now
        step = np.maximum(np.minimum(need.min((1, 2)), next_start), quantum)
        step = np.where(pending.any((1, 2)), step, 0.0)
        done = active & (need <= step[:, None, None] * _TOLERANCE)
        finish = np.where(done, clock + need, finish)
        pending &= ~done
        left = np.where(done, 0.0, left - rates * step[:, None, None])
        now = now + step
    return finish


def exchange_ends(
    sizes: FloatArray, arrivals: FloatArray, tiers: tuple[Tier, ...], local_rate: float, resolution: float = 0.0
) -> FloatArray:
    """When each rank leaves an all-to-all: [B, n], from bytes [B, n, n] and arrivals [B, n].

    A rank leaves when all it sends and receives has moved; what it keeps for itself is copied at ``local_rate``.
    ``resolution`` is the share of the bottleneck port's time within which ends are merged (0: exact).
    """
    both = np.maximum(arrivals[:, :, None], arrivals[:, None, :])
    own = np.diagonal(sizes, axis1=1, axis2=2)
    ends = arrivals + min(t.latency_ns for t in tiers) + own / local_rate
    off_diagonal = ~np.eye(sizes.shape[1], dtype=bool)
    for tier in tiers:
        here = np.where(tier.pairs & off_diagonal, sizes, 0.0)
        if not here.any():
            continue
        quantum = resolution * bottleneck_ns(here, tier)
        finish = finish_times(here, both + tier.latency_ns, tier.send, tier.receive, quantum)
        ends = np.maximum(ends, np.maximum(finish.max(2), finish.max(1)))
    return ends


def bottleneck_ns(sizes: FloatArray, tier: Tier) -> FloatArray:
    """Time of the busiest port of each exchange, [B]: no schedule is faster."""
    busy = np.maximum(sizes.sum(2) / tier.send, sizes.sum(1) / tier.receive)
    return np.asarray(busy.max(1), dtype=np.float64)
