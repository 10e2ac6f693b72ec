"""Capacity: at most so many assignments per expert and sending rank; the rest are dropped.

Legend: T tokens, E experts over all ranks, K experts per token, A = T * K assignments in token order,
N rows that are sent.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def capacity_of(num_tokens: int, top_k: int, num_experts: int, factor: float) -> int:
    """Rows one rank may send to one expert: ceil(factor * T * K / E)."""
    return max(1, math.ceil(factor * num_tokens * top_k / num_experts))


def places_in_expert(experts_A: Tensor, counts_E: Tensor, priority_A: Tensor | None) -> Tensor:
    """Each assignment's place in the queue of its expert, from 0, [A].

    Queues are in the order of the tokens, or of ``priority_A``, highest first.
    """
    by_priority = None if priority_A is None else priority_A.argsort(descending=True, stable=True)
    queued_A = experts_A if by_priority is None else experts_A[by_priority]
    order_A = queued_A.argsort(stable=True)
    first_E = counts_E.cumsum(0) - counts_E
    place_A = torch.empty_like(order_A)
    place_A[order_A] = torch.arange(order_A.numel(), device=order_A.device) - first_E[queued_A[order_A]]
    if by_priority is None:
        return place_A
    back_A = torch.empty_like(place_A)
    back_A[by_priority] = place_A
    return back_A
