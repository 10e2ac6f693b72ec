"""Why transfers may be slow: likely reasons, each with the number that speaks for it and what would confirm it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moescope.align.robust import FloatArray

SOCKET_SHARE = 0.15
"""Of the usual rate: sockets carry a tenth or less of what the fast transports do."""
HALF_LOW, HALF_HIGH = 0.3, 0.7
UNSTEADY = 2.0
"""The slowest tenth of the exchanges takes this many times what the fastest tenth does, for the same bytes."""
LATENCY_SHARE = 0.5
"""Share of the expected time that is latency, from which messages count as small."""


@dataclass(frozen=True, slots=True)
class Reason:
    """``check``: what would confirm it."""

    reason: str
    because: str
    check: str


def likely_reasons(
    share_of_usual: float, *, slow_ranks: tuple[int, ...] = (), num_ranks: int = 0, ratios: FloatArray | None = None,
    latency_share: float = 0.0,
) -> dict[str, str]:  # fmt: skip
    """Reason -> what speaks for it and what would confirm it, most telling first.

    ``share_of_usual``: the rate over what is usual (the other links', the baseline's). ``slow_ranks``: those whose
    links alone are slow. ``ratios``: time over expected time of each exchange. ``latency_share``: of the expected
    time.
    """
    found = []
    if slow_ranks and len(slow_ranks) < max(num_ranks, 1):
        who = f"rank {slow_ranks[0]}" if len(slow_ranks) == 1 else f"ranks {', '.join(map(str, slow_ranks[:8]))}"
        found.append(
            Reason(
                "a degraded link",
                f"only {who} of {num_ranks} are slow, at {share_of_usual:.0%} of the usual rate",
                "nvidia-smi nvlink -s, nvidia-smi -q (PCIe width and generation), ibstat and error counters there",
            )
        )
    if share_of_usual < SOCKET_SHARE:
        found.append(
            Reason(
                "sockets instead of the fast transport",
                f"{share_of_usual:.0%} of the usual rate is what TCP would carry",
                "NCCL_DEBUG=INFO names the transport (NET/Socket, NET/IB, P2P, SHM); NCCL_IB_DISABLE, NCCL_P2P_DISABLE",
            )
        )
    if HALF_LOW <= share_of_usual <= HALF_HIGH:
        found.append(
            Reason(
                "the wrong interface, or some of the rails only",
                f"{share_of_usual:.0%} of the usual rate is what a part of the links would carry",
                "NCCL_SOCKET_IFNAME, NCCL_IB_HCA; nvidia-smi topo -m: each device's nearest network card",
            )
        )
    if ratios is not None and len(ratios) >= 10 and (spread := _spread(ratios)) >= UNSTEADY:
        found.append(
            Reason(
                "congestion, such as other jobs' traffic",
                f"exchanges of the same bytes differ: the slowest tenth takes {spread:.1f} times what the fastest does",
                "repeat at another hour or on other hosts; look at the switches' counters",
            )
        )
    if latency_share >= LATENCY_SHARE:
        found.append(
            Reason(
                "messages too small for the bandwidth",
                f"{latency_share:.0%} of the expected time is latency",
                "larger microbatches or smaller groups; a low-latency dispatcher",
            )
        )
    return {reason.reason: f"{reason.because}; to confirm: {reason.check}" for reason in found}


def _spread(ratios: FloatArray) -> float:
    low, high = np.quantile(ratios, (0.1, 0.9))
    return float(high / low) if low > 0 else 0.0
