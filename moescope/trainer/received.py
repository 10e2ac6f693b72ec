"""What each rank really received, beside the balancing objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from moescope.trainer.placement import Placement, member_loads

Loads = Sequence[Sequence[Sequence[float]]]
"""Assignments by expert group, layer with experts, and expert."""


def busiest_rank(loads: Loads, placements: Mapping[int, Placement]) -> float | None:
    """(max - mean) / mean of what the ranks received in a step, as a mean over layers; None without experts."""
    layers = [_over_ranks([group[i] for group in loads], placement) for i, placement in enumerate(placements.values())]
    return fmean(layers) if layers else None


def _over_ranks(loads: Sequence[Sequence[float]], placement: Placement) -> float:
    received = [held for group in loads for held in member_loads(group, placement, max(placement) + 1)]
    return max(received) * len(received) / sum(received) - 1
