"""How experts are chosen from scores, and the diagnostic controls that override the choice.

Legend: T tokens, E experts over all ranks, G groups of experts, K experts per token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from moescope_hooks.ranges import in_backward
from torch import Tensor, nn
from torch.nn import functional as F

from moescope.trainer.seeds import generator_for

SCORES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda logits: logits.softmax(dim=-1),
    "sigmoid": torch.sigmoid,
    "sqrt_softplus": lambda logits: F.softplus(logits).sqrt(),
}
"""Scores that weights are made of; all grow with the logit."""


def limit_groups(scores_TE: Tensor, num_groups: int, top_groups: int) -> Tensor:
    """Scores with all but the best groups of each token at -inf, [T, E].

    Experts are cut into consecutive groups; a group counts as the sum of its two best scores (DeepSeek-V3).
    """
    scores_TGe = scores_TE.view(scores_TE.shape[0], num_groups, -1)
    best = min(2, scores_TGe.shape[2])
    group_TG = scores_TGe.topk(best, dim=-1).values.sum(dim=-1)
    kept_TG = torch.zeros_like(group_TG, dtype=torch.bool).scatter_(1, group_TG.topk(top_groups, dim=-1).indices, True)
    limited_TGe: Tensor = scores_TGe.masked_fill(~kept_TG.unsqueeze(-1), -math.inf)
    return limited_TGe.flatten(1)


class Draws(nn.Module):
    """Random numbers that repeat: the n-th draw depends on a seed and n alone, and n is part of a checkpoint."""

    def __init__(self, seed: str) -> None:
        super().__init__()
        self.seed = seed
        self.count = 0

    def generator(self) -> torch.Generator:
        """A generator for the next draw; a recomputed forward pass gets the last one again."""
        if not in_backward():
            self.count += 1
        return generator_for(f"{self.seed}/{self.count}")

    def get_extra_state(self) -> Any:
        """How many draws were made."""
        return self.count

    def set_extra_state(self, state: Any) -> None:
        """Continue after that many draws."""
        self.count = int(state)


def uniform_assignment(num_tokens: int, top_k: int, num_experts: int, start: int) -> Tensor:
    """Experts in turn, so that every expert gets as many assignments as any other, [T, K]."""
    return ((torch.arange(num_tokens * top_k) + start) % num_experts).view(num_tokens, top_k)


def zipf_scores(num_tokens: int, num_experts: int, exponent: float, draws: Draws) -> Tensor:
    """Scores whose K largest are K experts drawn without replacement with probabilities 1 / (e + 1)^exponent, [T, E].

    The Gumbel trick: log probabilities plus Gumbel noise. Expert 0 is the hottest.
    """
    log_p_E = -exponent * torch.arange(1, num_experts + 1, dtype=torch.float64).log()
    uniform_TE = torch.rand(num_tokens, num_experts, generator=draws.generator(), dtype=torch.float64)
    return (log_p_E - (-uniform_TE.clamp_min(1e-300).log()).log()).float()
