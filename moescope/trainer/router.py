"""The router: which experts a token goes to, and with what weight.

Legend: T tokens, D model width, E experts over all ranks, K experts per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from moescope_hooks.ranges import in_backward
from torch import Tensor, nn
from torch.nn import functional as F

from moescope.trainer.balance import ExpertBias, GlobalShare, sequence_loss, switch_loss
from moescope.trainer.config import Config
from moescope.trainer.mesh import Mesh
from moescope.trainer.selection import SCORES, Draws, limit_groups, uniform_assignment, zipf_scores


@dataclass(frozen=True)
class Routed:
    """The router's decision for one microbatch, or for half of one."""

    weights_TK: Tensor
    experts_TK: Tensor
    counts_E: Tensor
    """Assignments per expert, int64."""
    logits_TE: Tensor
    scores_TE: Tensor
    selection_TE: Tensor | None
    """Scores the choice was made from, where they do not order the experts as the logits do."""


@dataclass(frozen=True)
class Objective:
    """What the decisions for a microbatch are worth."""

    balance: Tensor
    """The balancing objective, 1 when uniform: of the method in use, or the Switch loss where it has none."""
    penalty: Tensor
    """What the layer adds to the training loss: auxiliary and z-loss, times their coefficients."""


class Router(nn.Module):
    """Scores in float32 (or bfloat16), top-K selection, balancing."""

    def __init__(self, config: Config, layer: int, mesh: Mesh, control_bias_E: Tensor | None) -> None:
        """``control_bias_E``: a diagnostic bias on the logits for the choice of experts alone, [E], or None."""
        super().__init__()
        self.config = config.moe
        self.control = config.control
        self.layer = layer
        self.sequence_length = config.train.sequence_length
        self.weight_ED = nn.Parameter(torch.empty(self.config.num_experts, config.model.dim))
        self.control_bias_E: Tensor | None
        self.register_buffer("control_bias_E", control_bias_E, persistent=False)
        bias_balances = self.config.balance == "bias"
        self.expert_bias = ExpertBias(self.config.num_experts, self.config.bias_update_rate) if bias_balances else None
        self.global_share = GlobalShare(layer, mesh.world)
        self.load_E: Tensor
        self.register_buffer("load_E", torch.zeros(self.config.num_experts, dtype=torch.int64), persistent=False)
        self.draws = Draws(f"{config.train.seed}/router/{layer}/{mesh.rank}")

    def begin_step(self) -> None:
        """Forget the last step's load."""
        self.load_E.zero_()
        self.global_share.begin_step()

    def forward(self, x_TD: Tensor) -> Routed:
        """Choose K experts for every token."""
        logits_TE = self._logits(x_TD, self.config.router_dtype)
        scores_TE = SCORES[self.config.score](logits_TE)
        selection_TE = self._selection(logits_TE.detach())
        experts_TK = self._experts(logits_TE.detach() if selection_TE is None else selection_TE)
        weights_TK = scores_TE.gather(1, experts_TK)
        if self.config.renormalize:
            weights_TK = weights_TK / weights_TK.sum(dim=-1, keepdim=True)
        counts_E = torch.bincount(experts_TK.reshape(-1), minlength=self.config.num_experts)
        return Routed(weights_TK, experts_TK, counts_E, logits_TE, scores_TE, selection_TE)

    def judge(self, parts: Sequence[Routed]) -> Objective:
        """The objective of a microbatch that was routed in ``parts``, as if it had been routed whole."""
        scores_TE, logits_TE = (_joined([getattr(p, name) for p in parts]) for name in ("scores_TE", "logits_TE"))
        counts_E = torch.stack([part.counts_E for part in parts]).sum(dim=0)
        balance = self._balance(scores_TE, _joined([part.experts_TK for part in parts]), counts_E)
        return Objective(balance.detach(), self._penalty(balance, logits_TE))

    def in_other_precision(self, x_TD: Tensor) -> Tensor:
        """What the choice would be made from, [T, E], were the router in bfloat16 instead of float32 or vice versa."""
        other = "float32" if self.config.router_dtype == "bfloat16" else "bfloat16"
        logits_TE = self._logits(x_TD.detach(), other)
        selection_TE = self._selection(logits_TE)
        return logits_TE if selection_TE is None else selection_TE

    @property
    def chooses_at_random(self) -> bool:
        """Whether choosing again would draw other numbers, or whether nothing is chosen by the scores."""
        return self.control.routing != "learned" or (self.config.noise > 0 and self.training)

    def _logits(self, x_TD: Tensor, dtype: str) -> Tensor:
        """Logits in float32; of a router in bfloat16 rounded, inputs, weights and sums."""
        with torch.autocast(x_TD.device.type, enabled=False):
            if dtype == "bfloat16":
                return F.linear(x_TD.bfloat16(), self.weight_ED.bfloat16()).float()
            return F.linear(x_TD.float(), self.weight_ED.float())

    def _selection(self, logits_TE: Tensor) -> Tensor | None:
        """Scores to choose from where biases, noise or groups make them differ from the logits."""
        config, control = self.config, self.control
        if control.routing == "zipf":
            return zipf_scores(logits_TE.shape[0], logits_TE.shape[1], control.zipf_exponent, self.draws).to(
                logits_TE.device
            )
        moved_TE = logits_TE
        if self.control_bias_E is not None:
            moved_TE = moved_TE + self.control_bias_E
        if config.noise > 0 and self.training:
            noise_TE = torch.randn(logits_TE.shape, generator=self.draws.generator())
            moved_TE = moved_TE + config.noise * noise_TE.to(logits_TE.device)
        if self.expert_bias is not None:
            moved_TE = SCORES[config.score](moved_TE) + self.expert_bias.bias_E
        if config.num_groups > 1:
            scores_TE = moved_TE if self.expert_bias is not None else SCORES[config.score](moved_TE)
            moved_TE = limit_groups(scores_TE, config.num_groups, config.top_groups)
        return None if moved_TE is logits_TE else moved_TE

    def _experts(self, chosen_TE: Tensor) -> Tensor:
        if self.control.routing == "uniform":
            num_tokens, num_experts = chosen_TE.shape
            return uniform_assignment(num_tokens, self.config.top_k, num_experts, self.layer).to(chosen_TE.device)
        return chosen_TE.topk(self.config.top_k, dim=-1).indices

    def _balance(self, scores_TE: Tensor, experts_TK: Tensor, counts_E: Tensor) -> Tensor:
        probabilities_TE = scores_TE if self.config.score == "softmax" else scores_TE / scores_TE.sum(-1, keepdim=True)
        if self.training and not in_backward():
            self.load_E += counts_E
        if self.config.balance == "aux_sequence":
            return sequence_loss(probabilities_TE, experts_TK, self.sequence_length)
        if self.config.balance == "aux_global" and self.training:
            return switch_loss(probabilities_TE, self.global_share.update(counts_E))
        return switch_loss(probabilities_TE, counts_E / counts_E.sum())

    def _penalty(self, balance: Tensor, logits_TE: Tensor) -> Tensor:
        penalty = torch.zeros_like(balance)
        if self.config.balance.startswith("aux"):
            penalty = penalty + self.config.balance_coefficient * balance
        if self.config.z_loss_coefficient > 0:
            penalty = penalty + self.config.z_loss_coefficient * z_loss(logits_TE)
        return penalty


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def z_loss(logits_TE: Tensor) -> Tensor:
    """The mean of the squared log-sum-exp of the logits, which keeps them small (Zoph et al., ST-MoE, eq. 5)."""
    return logits_TE.logsumexp(dim=-1).square().mean()
