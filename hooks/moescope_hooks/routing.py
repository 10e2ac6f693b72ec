"""What one MoE layer decided for one microbatch, and the figures derived from it on the device."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle


@dataclass(frozen=True)
class Routing:
    """One forward pass of one MoE layer on this rank, still on the device.

    T tokens, E experts over all ranks, K experts per token. Only ``counts_E`` is required.
    """

    counts_E: Tensor
    """Assignments to each expert before capacity, int64 [E]."""
    dropped_E: Tensor | None = None
    """How many of them were dropped, int64 [E]."""
    logits_TE: Tensor | None = None
    """What the router computed, float32 [T, E]."""
    selection_TE: Tensor | None = None
    """Scores that the K largest were taken of, where they differ from the logits (biases, groups) [T, E]."""
    other_precision: Callable[[], Tensor] | None = None
    """Computes what the K largest are taken of, [T, E], as a router of the other precision would: bfloat16 for one in
    float32, and the other way round. For ``bf16_flips``."""
    top_k: int = 1


@runtime_checkable
class ReportsRouting(Protocol):
    """An MoE layer that reports its own routing: ``observe`` finds such modules and registers a hook."""

    layer: int
    """Index over all decoder layers, dense ones included."""

    def register_routing_hook(self, hook: Callable[[Routing], None]) -> RemovableHandle:
        """Call ``hook`` in every forward pass once the counts are known."""
        ...


@torch.no_grad()
def router_figures(routing: Routing) -> Tensor | None:
    """``[entropy, margin, bf16_flips]`` as float32 [3] on the device, or None without logits; never synchronises.

    The number of flips is exact in float32 up to 2**24 selections.
    """
    if routing.logits_TE is None:
        return None
    logits_TE = routing.logits_TE.detach().float()
    log_p_TE = torch.log_softmax(logits_TE, dim=-1)
    entropy = -(log_p_TE.exp() * log_p_TE).sum(-1).mean() / math.log(max(2, logits_TE.shape[1]))
    chosen_TE = logits_TE if routing.selection_TE is None else routing.selection_TE.detach()
    k = min(routing.top_k, chosen_TE.shape[1] - 1)
    top_scores, top_experts = chosen_TE.topk(k + 1, dim=-1)
    margin = (top_scores[:, k - 1] - top_scores[:, k]).mean()
    if routing.other_precision is None:
        flips = torch.full_like(margin, math.nan)
    else:
        flips = _num_flips(top_experts[:, :k], routing.other_precision().topk(k, dim=-1).indices, chosen_TE.shape[1])
    return torch.stack([entropy, margin.float(), flips.float()])


def _num_flips(exact_TK: Tensor, rounded_TK: Tensor, num_experts: int) -> Tensor:
    """How many of the exact selections the rounded router does not make."""
    mask_TE = torch.zeros(exact_TK.shape[0], num_experts, dtype=torch.bool, device=exact_TK.device)
    mask_TE.scatter_(1, rounded_TK, True)
    return (~mask_TE.gather(1, exact_TK)).sum()
