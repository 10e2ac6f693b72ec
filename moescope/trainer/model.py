"""A decoder-only transformer whose upper layers are mixtures of experts.

Legend: B sequences, S positions, D model width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, cast

import torch
from moescope_hooks.ranges import microbatch_now, set_microbatch, traced
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from moescope.trainer.attention import Attention, rotary_tables
from moescope.trainer.config import Config
from moescope.trainer.dense import dense_hidden_dim
from moescope.trainer.experts import Experts, SwiGLU
from moescope.trainer.faults import Faults
from moescope.trainer.mesh import Mesh
from moescope.trainer.moe import MoE
from moescope.trainer.overlap import Steps, alternate, run
from moescope.trainer.placement import Placement
from moescope.trainer.router import Objective, Routed, Router
from moescope.trainer.seeds import generator_for

LayerOut = tuple[Tensor, Tensor, Tensor]
"""The residual stream after a layer, its router's penalty and its balancing objective."""


class Loss(NamedTuple):
    """The losses of one microbatch, as means over its tokens."""

    cross_entropy: Tensor
    """Nats per byte."""
    penalty: Tensor
    """What the routers add to the training loss."""
    balance: Tensor
    """The mean over layers of the balancing objective, 1 when uniform; without gradient."""


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, over the last axis, in float32."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Same shape and dtype as ``x``."""
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps).to(x.dtype)


class Block(nn.Module):
    """One decoder layer: attention, then a dense block or a mixture of experts."""

    def __init__(self, config: Config, layer: int, mesh: Mesh, placement: Placement | None, faults: Faults) -> None:
        """``placement``: the member that holds each expert; None for a layer without experts."""
        super().__init__()
        model = config.model
        self.layer = layer
        self.attention_norm = RMSNorm(model.dim, model.norm_eps)
        self.attention = Attention(model)
        self.ffn_norm = RMSNorm(model.dim, model.norm_eps)
        self.ffn: MoE | SwiGLU
        if placement is None:
            self.ffn = SwiGLU(model.dim, dense_hidden_dim(config, layer))
        else:
            self.ffn = MoE(config, layer, mesh, placement, faults)
        self.faults = faults

    def forward(self, x_BSD: Tensor, cos_Sh: Tensor, sin_Sh: Tensor) -> LayerOut:
        """The residual stream after this layer, the router's penalty and its balancing objective."""
        x_BSD, routed, objective = run(self.steps(x_BSD, cos_Sh, sin_Sh))
        if isinstance(self.ffn, MoE) and routed is not None:
            objective = objective or self.ffn.judge([routed])
            return x_BSD, objective.penalty, objective.balance
        nothing = x_BSD.new_zeros(())
        return x_BSD, nothing, nothing

    def steps(
        self, x_BSD: Tensor, cos_Sh: Tensor, sin_Sh: Tensor
    ) -> Steps[tuple[Tensor, Routed | None, Objective | None]]:
        """The residual stream, and of a mixture of experts what :meth:`MoE.steps` says of the routing."""

        def attend(x_BSD: Tensor) -> Tensor:
            x_BSD = self.faults.slow_down(x_BSD, lambda x: self.attention(x, cos_Sh, sin_Sh))
            out: Tensor = self.attention(self.attention_norm(x_BSD), cos_Sh, sin_Sh)
            return out

        x_BSD = x_BSD + traced("attention", self.layer, attend, x_BSD)
        if isinstance(self.ffn, MoE):
            y_BSD, routed, objective = yield from self.ffn.steps(self.ffn_norm(x_BSD))
            return x_BSD + y_BSD, routed, objective
        dense = self.ffn
        return x_BSD + traced("dense", self.layer, lambda x: dense(self.ffn_norm(x)), x_BSD), None, None


class Transformer(nn.Module):
    """The whole model as this rank holds it: everything but the experts, and this rank's experts."""

    def __init__(self, config: Config, mesh: Mesh, placements: Mapping[int, Placement]) -> None:
        """``placements``: of every layer with experts, the member of the expert group that holds each."""
        super().__init__()
        model = config.model
        self.config = config
        self.embedding = nn.Embedding(model.vocab_size, model.dim)
        faults = Faults(config.control, mesh.rank, mesh.device)
        self.layers = nn.ModuleList(Block(config, i, mesh, placements.get(i), faults) for i in range(model.num_layers))
        self.faults = faults
        self.num_moe_layers = len(placements)
        self.in_halves = config.train.two_batch_overlap
        self.norm = RMSNorm(model.dim, model.norm_eps)
        self.head = nn.Linear(model.dim, model.vocab_size, bias=False)
        cos_Sh, sin_Sh = rotary_tables(config.train.sequence_length, model.dim // model.num_heads, model.rope_theta)
        self.register_buffer("cos_Sh", cos_Sh, persistent=False)
        self.register_buffer("sin_Sh", sin_Sh, persistent=False)
        self.cos_Sh: Tensor
        self.sin_Sh: Tensor
        initialize(self, config)

    def forward(self, tokens_BS: Tensor, targets_BS: Tensor) -> Loss:
        """The losses of predicting ``targets_BS`` from ``tokens_BS``."""
        self.faults.stall_host()
        if self.in_halves and self.training:
            return self._in_halves(tokens_BS, targets_BS)
        x_BSD = self.embedding(tokens_BS)
        penalty, balance = x_BSD.new_zeros(()), x_BSD.new_zeros(())
        for block in self.layers:
            x_BSD, layer_penalty, layer_balance = self._layer(block, x_BSD)
            penalty, balance = penalty + layer_penalty, balance + layer_balance
        cross_entropy = traced("head", None, lambda x: self._cross_entropy(x, targets_BS), x_BSD)
        return Loss(cross_entropy, penalty, balance / max(1, self.num_moe_layers))

    def _in_halves(self, tokens_BS: Tensor, targets_BS: Tensor) -> Loss:
        """The same losses from two halves that take turns; they count as microbatches of their own."""
        first = 2 * (microbatch_now() or 0)
        pairs = zip(tokens_BS.chunk(2), targets_BS.chunk(2), strict=True)
        halves = alternate([self._half(*pair) for pair in pairs], lambda half: set_microbatch(first + half))
        cross_entropy = torch.stack([half[0] for half in halves]).mean()
        penalty, balance = cross_entropy.new_zeros(()), cross_entropy.new_zeros(())
        for layer, *parts in zip(self._moe_layers(), *(half[1] for half in halves), strict=True):
            objective = layer.judge(parts)
            penalty, balance = penalty + objective.penalty, balance + objective.balance
        return Loss(cross_entropy, penalty, balance / max(1, self.num_moe_layers))

    def _half(self, tokens_BS: Tensor, targets_BS: Tensor) -> Steps[tuple[Tensor, list[Routed]]]:
        """Cross-entropy and the layers' routing."""
        x_BSD, decisions = self.embedding(tokens_BS), []
        for block in self.layers:
            x_BSD, routed, _ = yield from cast(Block, block).steps(x_BSD, self.cos_Sh, self.sin_Sh)
            decisions += [] if routed is None else [routed]
        return traced("head", None, lambda x: self._cross_entropy(x, targets_BS), x_BSD), decisions

    def _layer(self, block: nn.Module, x_BSD: Tensor) -> LayerOut:
        arguments = (x_BSD, self.cos_Sh, self.sin_Sh)
        if self.config.train.recompute == "full" and torch.is_grad_enabled():
            return cast(LayerOut, checkpoint(block, *arguments, use_reentrant=False))
        return cast(LayerOut, block(*arguments))

    def _cross_entropy(self, x_BSD: Tensor, targets_BS: Tensor) -> Tensor:
        logits_BSV = self.head(self.norm(x_BSD)).float()
        return F.cross_entropy(logits_BSV.flatten(0, 1), targets_BS.flatten())

    def _moe_layers(self) -> list[MoE]:
        return [m for m in self.modules() if isinstance(m, MoE)]

    def routers(self) -> list[Router]:
        """The routers from bottom to top."""
        return [layer.router for layer in self._moe_layers()]

    def expert_parameters(self) -> list[nn.Parameter]:
        """Parameters of which every rank of the expert group holds others."""
        return [p for m in self.modules() if isinstance(m, Experts) for p in m.parameters()]


@torch.no_grad()
def initialize(model: Transformer, config: Config) -> None:
    """Draw each weight from a generator of its own, seeded by its name, so that no layout changes any of them."""
    std = config.model.init_std
    residual_std = std / math.sqrt(2 * config.model.num_layers)
    for module_name, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            full_name = f"{module_name}.{name}"
            if parameter.dim() == 1:
                continue
            is_residual = any(part in full_name for part in ("down", "attention.out"))
            scale = residual_std if is_residual else std
            if isinstance(module, Experts):
                for i, expert in enumerate(module.experts):
                    _draw(parameter[i], f"{full_name}/{expert}", scale, config.train.seed)
            else:
                _draw(parameter, full_name, scale, config.train.seed)


def _draw(weight: Tensor, name: str, std: float, seed: int) -> None:
    weight.copy_(torch.randn(weight.shape, generator=generator_for(f"{seed}/{name}")) * std)
