"""The router: which experts a token goes to, and with what weight.

Legend: T tokens, D model width, E experts over all ranks, K experts per token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from moescope.trainer.config import MoEConfig


@dataclass(frozen=True)
class Routed:
    """The router's decision for one microbatch."""

    weights_TK: Tensor
    experts_TK: Tensor
    counts_E: Tensor
    """Assignments per expert, int64."""
    logits_TE: Tensor
    selection_TE: Tensor | None
    """Scores the choice was made from, where they are not the logits."""
    balance_loss: Tensor
    """The auxiliary loss before its coefficient; 0 without one."""


class Router(nn.Module):
    """Softmax router in float32 with top-K selection."""

    def __init__(self, config: MoEConfig, dim: int, selection_bias_E: Tensor | None) -> None:
        """``selection_bias_E``: a diagnostic bias on the choice of experts alone, [E], or None."""
        super().__init__()
        self.config = config
        self.weight_ED = nn.Parameter(torch.empty(config.num_experts, dim))
        self.selection_bias_E: Tensor | None
        self.register_buffer("selection_bias_E", selection_bias_E, persistent=False)

    def forward(self, x_TD: Tensor) -> Routed:
        """Choose K experts for every token."""
        with torch.autocast(x_TD.device.type, enabled=False):
            logits_TE = F.linear(x_TD.float(), self.weight_ED.float())
        scores_TE = logits_TE.softmax(dim=-1)
        selection_TE = None if self.selection_bias_E is None else logits_TE.detach() + self.selection_bias_E
        chosen_TE = logits_TE.detach() if selection_TE is None else selection_TE
        experts_TK = chosen_TE.topk(self.config.top_k, dim=-1).indices
        weights_TK = scores_TE.gather(1, experts_TK)
        if self.config.renormalize:
            weights_TK = weights_TK / weights_TK.sum(dim=-1, keepdim=True)
        counts_E = torch.bincount(experts_TK.reshape(-1), minlength=self.config.num_experts)
        return Routed(
            weights_TK, experts_TK, counts_E, logits_TE, selection_TE, self._balance_loss(scores_TE, counts_E)
        )

    def bf16_logits(self, x_TD: Tensor) -> Tensor:
        """The logits a router in bfloat16 would have computed (products summed in float32, rounded at the end)."""
        rounded_TE = F.linear(x_TD.bfloat16().float(), self.weight_ED.bfloat16().float())
        return rounded_TE.bfloat16().float()

    def _balance_loss(self, scores_TE: Tensor, counts_E: Tensor) -> Tensor:
        if self.config.balance == "none":
            return scores_TE.new_zeros(())
        return switch_loss(scores_TE, counts_E)


def switch_loss(scores_TE: Tensor, counts_E: Tensor) -> Tensor:
    """E * sum_e f_e P_e: f the share of assignments, P the mean score (Fedus et al., Switch Transformer, eq. 4).

    1 when uniform; the gradient flows through P only.
    """
    share_E = counts_E.to(scores_TE.dtype) / counts_E.sum()
    return scores_TE.shape[1] * (share_E * scores_TE.mean(dim=0)).sum()
