"""The mixture-of-experts layer and the SwiGLU blocks it is made of.

Legend: B sequences, S positions, T = B * S tokens, D model width, F inner width, E experts over all ranks,
e experts of this rank, R rows received, K experts per token.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from moescope_hooks.ranges import traced
from moescope_hooks.routing import Routing
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from moescope.trainer.config import Config
from moescope.trainer.dispatch import AllToAllDispatcher, Dispatcher
from moescope.trainer.mesh import Group
from moescope.trainer.router import Routed, Router


class SwiGLU(nn.Module):
    """A gated feed-forward block: (silu(x W_gate) * x W_up) W_down."""

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, hidden_dim, bias=False)
        self.up = nn.Linear(dim, hidden_dim, bias=False)
        self.down = nn.Linear(hidden_dim, dim, bias=False)

    def forward(self, x_TD: Tensor) -> Tensor:
        """[T, D] to [T, D]."""
        out: Tensor = self.down(F.silu(self.gate(x_TD)) * self.up(x_TD))
        return out


class Experts(nn.Module):
    """This rank's experts, one after the other."""

    def __init__(self, experts: list[int], dim: int, hidden_dim: int) -> None:
        """``experts``: the global numbers of this rank's experts, ascending."""
        super().__init__()
        self.experts = experts
        self.gate_eDF = nn.Parameter(torch.empty(len(experts), dim, hidden_dim))
        self.up_eDF = nn.Parameter(torch.empty(len(experts), dim, hidden_dim))
        self.down_eFD = nn.Parameter(torch.empty(len(experts), hidden_dim, dim))

    def forward(self, x_RD: Tensor, counts_e: list[int]) -> Tensor:
        """Rows in expert order, ``counts_e[i]`` of them for expert i; an expert without rows still gets a gradient."""
        weights = zip(self.gate_eDF.unbind(), self.up_eDF.unbind(), self.down_eFD.unbind(), strict=True)
        outs = [
            (F.silu(x @ gate_DF) * (x @ up_DF)) @ down_FD
            for x, (gate_DF, up_DF, down_FD) in zip(torch.split(x_RD, counts_e), weights, strict=True)
        ]
        return torch.cat(outs)


class MoE(nn.Module):
    """Router, dispatcher, experts and the way back."""

    def __init__(self, config: Config, layer: int, group: Group, placement: list[int], favoured: int | None) -> None:
        """``placement``: the member of ``group`` that holds each expert; ``favoured``: the member a bias favours."""
        super().__init__()
        self.layer = layer
        moe, dim = config.moe, config.model.dim
        bias_E = None
        if favoured is not None:
            bias_E = torch.tensor([config.control.router_bias if member == favoured else 0.0 for member in placement])
        self.router = Router(moe, dim, bias_E)
        mine = [expert for expert, member in enumerate(placement) if member == group.index]
        self.experts = Experts(mine, dim, moe.expert_hidden_dim)
        self.shared = SwiGLU(dim, moe.num_shared_experts * moe.expert_hidden_dim) if moe.num_shared_experts else None
        self.dispatcher: Dispatcher = AllToAllDispatcher(layer, group, placement)
        self._routing_hooks: OrderedDict[int, Callable[[Routing], None]] = OrderedDict()

    def register_routing_hook(self, hook: Callable[[Routing], None]) -> RemovableHandle:
        """Call ``hook`` with the routing of every forward pass."""
        handle = RemovableHandle(self._routing_hooks)
        self._routing_hooks[handle.id] = hook
        return handle

    def forward(self, x_BSD: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's output [B, S, D] and its auxiliary loss."""
        x_TD = x_BSD.flatten(0, 1)
        routed, weights_TK, balance_loss = self._route(x_TD)
        rows_RD, counts_e, metadata = self.dispatcher.dispatch(x_TD, weights_TK, routed.experts_TK, routed.counts_E)
        out_RD = traced("experts", self.layer, lambda x: self.experts(x, counts_e), rows_RD)
        out_TD = self.dispatcher.combine(out_RD, metadata)
        if self.shared is not None:
            out_TD = out_TD + traced("shared", self.layer, self.shared, x_TD)
        return out_TD.view_as(x_BSD), balance_loss

    def _route(self, x_TD: Tensor) -> tuple[Routed, Tensor, Tensor]:
        def region(x: Tensor) -> tuple[Routed, Tensor, Tensor]:
            routed: Routed = self.router(x)
            return routed, routed.weights_TK, routed.balance_loss

        routed, weights_TK, balance_loss = traced("router", self.layer, region, x_TD)
        if self._routing_hooks:
            report = Routing(
                routed.counts_E,
                logits_TE=routed.logits_TE,
                selection_TE=routed.selection_TE,
                bf16_logits=lambda: self.router.bf16_logits(x_TD),
                top_k=self.router.config.top_k,
            )
            for hook in self._routing_hooks.values():
                hook(report)
        return routed, weights_TK, balance_loss
