"""Balancing the experts' load: auxiliary losses, and the bias that needs none.

Legend: T tokens, E experts over all ranks, B sequences of S positions.
"""

from __future__ import annotations

import torch
from moescope_hooks.ranges import in_backward, microbatch_now
from torch import Tensor, nn

from moescope.trainer.comm import Place, sum_recorded
from moescope.trainer.mesh import Group

METHODS = ("none", "aux_microbatch", "aux_sequence", "aux_global", "bias")


def switch_loss(probabilities_TE: Tensor, share_E: Tensor) -> Tensor:
    """E * sum_e f_e P_e: f the share of assignments, P the mean probability (Fedus et al., Switch Transformer, eq. 4).

    1 when uniform; the gradient flows through P only.
    """
    return probabilities_TE.shape[1] * (share_E * probabilities_TE.mean(dim=0)).sum()


def sequence_loss(probabilities_TE: Tensor, experts_TK: Tensor, sequence_length: int) -> Tensor:
    """The mean over sequences of the Switch loss of each."""
    num_tokens, num_experts = probabilities_TE.shape
    chosen_TE = torch.zeros_like(probabilities_TE).scatter_(1, experts_TK, 1.0)
    share_BE = chosen_TE.view(-1, sequence_length, num_experts).mean(dim=1) / experts_TK.shape[1]
    mean_BE = probabilities_TE.view(num_tokens // sequence_length, sequence_length, num_experts).mean(dim=1)
    return num_experts * (share_BE * mean_BE).sum(dim=1).mean()


class GlobalShare:
    """The experts' shares over the global batch as far as it has been seen: all ranks, this step's microbatches so far.

    A share over a microbatch forces every microbatch to be balanced by itself and hinders experts from specialising
    on a domain; a share over the global batch asks for balance of the whole (Qiu et al., Demons in the Detail).
    """

    def __init__(self, layer: int, world: Group) -> None:
        self.layer = layer
        self.world = world
        self._seen_E: Tensor | None = None

    def begin_step(self) -> None:
        """Forget the last step's microbatches."""
        self._seen_E = None

    def update(self, counts_E: Tensor) -> Tensor:
        """The shares [E] including this microbatch; a recomputed forward pass gets those of the first one."""
        if self._seen_E is None or not in_backward():
            place = Place("router", self.layer, microbatch_now())
            counts_E = sum_recorded(counts_E.clone(), self.world, place)
            self._seen_E = counts_E if self._seen_E is None else self._seen_E + counts_E
        return self._seen_E / self._seen_E.sum()


class ExpertBias(nn.Module):
    """A bias on the choice of experts that follows the load and leaves the weights alone.

    After each step: bias += rate * sign(mean load - load) (Wang et al., Auxiliary-Loss-Free Load Balancing, alg. 1).
    """

    def __init__(self, num_experts: int, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.bias_E: Tensor
        self.register_buffer("bias_E", torch.zeros(num_experts))

    def update(self, load_E: Tensor) -> None:
        """Follow the whole step's load over all ranks."""
        load_E = load_E.to(self.bias_E.dtype)
        self.bias_E += self.rate * torch.sign(load_E.mean() - load_E)
