"""The mixture-of-experts layer: router, dispatcher, experts and the way back.

Legend: B sequences, S positions, T = B * S tokens, D model width, K experts per token, R rows received.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import cast

import torch
from moescope_hooks.ranges import traced
from moescope_hooks.routing import Routing
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.hooks import RemovableHandle

from moescope.trainer.config import Config
from moescope.trainer.dispatch import AllToAllDispatcher, Dispatcher
from moescope.trainer.experts import Experts, SwiGLU
from moescope.trainer.faults import Faults
from moescope.trainer.mesh import Mesh
from moescope.trainer.overlap import Steps, run
from moescope.trainer.placement import Placement
from moescope.trainer.router import Objective, Routed, Router


class MoE(nn.Module):
    """One layer of experts; reports its routing to whoever registers a hook."""

    def __init__(self, config: Config, layer: int, mesh: Mesh, placement: Placement, faults: Faults) -> None:
        """``placement``: the member of the expert group that holds each expert, [num_experts]."""
        super().__init__()
        self.layer = layer
        moe, dim = config.moe, config.model.dim
        self.router = Router(config, layer, mesh, _control_bias(config, mesh, placement))
        mine = [expert for expert, member in enumerate(placement) if member == mesh.expert.index]
        self.experts = Experts(mine, dim, moe.expert_hidden_dim, moe.expert_compute)
        self.shared = SwiGLU(dim, moe.num_shared_experts * moe.expert_hidden_dim) if moe.num_shared_experts else None
        self.in_halves = config.train.two_batch_overlap
        self.dispatcher: Dispatcher = AllToAllDispatcher(layer, mesh.expert, placement, moe, overlapped=self.in_halves)
        self.faults = faults
        self.recompute_experts = config.train.recompute == "experts"
        self._routing_hooks: OrderedDict[int, Callable[[Routing], None]] = OrderedDict()

    def register_routing_hook(self, hook: Callable[[Routing], None]) -> RemovableHandle:
        """Call ``hook`` with the routing of every forward pass."""
        handle = RemovableHandle(self._routing_hooks)
        self._routing_hooks[handle.id] = hook
        return handle

    def forward(self, x_BSD: Tensor) -> tuple[Tensor, Objective]:
        """The layer's output [B, S, D] and the routing's objective."""
        out_BSD, routed, objective = run(self.steps(x_BSD))
        return out_BSD, objective or self.judge([routed])

    def steps(self, x_BSD: Tensor) -> Steps[tuple[Tensor, Routed, Objective | None]]:
        """Output and decision, and their objective unless a microbatch comes in halves, which :meth:`judge` judges."""
        x_TD = x_BSD.flatten(0, 1)
        routed, objective, weights_TK = self._route(x_TD)
        rows_RD, counts_e, metadata = yield from self.dispatcher.dispatch(
            x_TD, weights_TK, routed.experts_TK, routed.counts_E
        )
        self._report(x_TD, routed, metadata.dropped_E)
        out_RD = traced("experts", self.layer, lambda x: self._compute(x, counts_e), rows_RD)
        out_TD = yield from self.dispatcher.combine(out_RD, metadata)
        if self.shared is not None:
            out_TD = out_TD + traced("shared", self.layer, self.shared, x_TD)
        return out_TD.view_as(x_BSD), routed, objective

    def judge(self, parts: Sequence[Routed]) -> Objective:
        """The objective of a microbatch that was routed in ``parts``."""
        return traced("router", self.layer, lambda: self.router.judge(parts))

    def _route(self, x_TD: Tensor) -> tuple[Routed, Objective | None, Tensor]:
        def region(x: Tensor) -> tuple[Routed, Objective | None, Tensor]:
            routed: Routed = self.router(x)
            return routed, None if self.in_halves and self.training else self.router.judge([routed]), routed.weights_TK

        return traced("router", self.layer, region, x_TD)

    def _compute(self, x_RD: Tensor, counts_e: list[int]) -> Tensor:
        x_RD = self.faults.slow_down(x_RD, lambda x: self.experts(x, [x.shape[0]] + [0] * (len(counts_e) - 1)))
        if self.recompute_experts and torch.is_grad_enabled():
            return cast(Tensor, checkpoint(self.experts, x_RD, counts_e, use_reentrant=False))
        return cast(Tensor, self.experts(x_RD, counts_e))

    def _report(self, x_TD: Tensor, routed: Routed, dropped_E: Tensor | None) -> None:
        if not self._routing_hooks:
            return
        report = Routing(
            routed.counts_E,
            dropped_E=dropped_E,
            logits_TE=routed.logits_TE,
            selection_TE=routed.selection_TE,
            other_precision=None if self.router.chooses_at_random else lambda: self.router.in_other_precision(x_TD),
            top_k=self.router.config.top_k,
        )
        for hook in self._routing_hooks.values():
            hook(report)


def _control_bias(config: Config, mesh: Mesh, placement: Placement) -> Tensor | None:
    """The diagnostic bias on the experts of one rank, [num_experts], or None."""
    control = config.control
    if not control.router_bias:
        return None
    favoured = next(g.index(control.router_bias_rank) for g in mesh.ep_groups if control.router_bias_rank in g)
    return torch.tensor([control.router_bias if member == favoured else 0.0 for member in placement])
