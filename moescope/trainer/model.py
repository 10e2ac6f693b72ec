"""A decoder-only transformer whose upper layers are mixtures of experts.

Legend: B sequences, S positions, T = B * S tokens, D model width, H heads, h head width, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
from moescope_hooks.ranges import traced
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from moescope.trainer.config import Config
from moescope.trainer.experts import Experts, SwiGLU
from moescope.trainer.faults import Faults
from moescope.trainer.mesh import Mesh
from moescope.trainer.moe import MoE
from moescope.trainer.router import Router
from moescope.trainer.seeds import generator_for
from moescope.trainer.settings.model import ModelConfig

LayerOut = tuple[Tensor, Tensor, Tensor]
"""The residual stream after a layer, its router's penalty and its balancing objective."""


@dataclass(frozen=True)
class Loss:
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


class Attention(nn.Module):
    """Causal self-attention with rotary positions."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.qkv = nn.Linear(config.dim, 3 * config.dim, bias=False)
        self.out = nn.Linear(config.dim, config.dim, bias=False)

    def forward(self, x_BSD: Tensor, cos_Sh: Tensor, sin_Sh: Tensor) -> Tensor:
        """[B, S, D] to [B, S, D]."""
        q, k, v = (
            part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in self.qkv(x_BSD).chunk(3, dim=-1)
        )
        q, k = rotate(q, cos_Sh, sin_Sh), rotate(k, cos_Sh, sin_Sh)
        y_BHSh = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.out(y_BHSh.transpose(1, 2).flatten(2))
        return out


def rotary_tables(seq_len: int, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine of position times frequency, [S, h]; frequencies theta^(-2i/h) (Su et al., RoFormer)."""
    frequencies = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = torch.arange(seq_len, dtype=torch.float64)[:, None] * frequencies
    angles_Sh = torch.cat([angles, angles], dim=-1)
    return angles_Sh.cos().float(), angles_Sh.sin().float()


def rotate(x_BHSh: Tensor, cos_Sh: Tensor, sin_Sh: Tensor) -> Tensor:
    """Turn each pair (x[i], x[i + h/2]) by its position's angle."""
    first, second = x_BHSh.chunk(2, dim=-1)
    turned = x_BHSh * cos_Sh + torch.cat([-second, first], dim=-1) * sin_Sh
    return turned.to(x_BHSh.dtype)


class Block(nn.Module):
    """One decoder layer: attention, then a dense block or a mixture of experts."""

    def __init__(self, config: Config, layer: int, mesh: Mesh, placement: list[int], faults: Faults) -> None:
        super().__init__()
        model = config.model
        self.layer = layer
        self.attention_norm = RMSNorm(model.dim, model.norm_eps)
        self.attention = Attention(model)
        self.ffn_norm = RMSNorm(model.dim, model.norm_eps)
        dense = layer < model.num_dense_layers
        self.ffn: MoE | SwiGLU = (
            SwiGLU(model.dim, model.dense_hidden_dim) if dense else MoE(config, layer, mesh, placement, faults)
        )
        self.faults = faults

    def forward(self, x_BSD: Tensor, cos_Sh: Tensor, sin_Sh: Tensor) -> LayerOut:
        """The residual stream after this layer, the router's penalty and its balancing objective."""

        def attend(x_BSD: Tensor) -> Tensor:
            x_BSD = self.faults.slow_down(x_BSD, lambda x: self.attention(x, cos_Sh, sin_Sh))
            out: Tensor = self.attention(self.attention_norm(x_BSD), cos_Sh, sin_Sh)
            return out

        x_BSD = x_BSD + traced("attention", self.layer, attend, x_BSD)
        if isinstance(self.ffn, MoE):
            y_BSD, routed = self.ffn(self.ffn_norm(x_BSD))
            return x_BSD + y_BSD, routed.penalty, routed.balance
        dense, nothing = self.ffn, x_BSD.new_zeros(())
        return x_BSD + traced("dense", self.layer, lambda x: dense(self.ffn_norm(x)), x_BSD), nothing, nothing


class Transformer(nn.Module):
    """The whole model as this rank holds it: everything but the experts, and this rank's experts."""

    def __init__(self, config: Config, mesh: Mesh, placement: list[int]) -> None:
        """``placement``: the member of the expert group that holds each expert, [num_experts]."""
        super().__init__()
        model = config.model
        self.config = config
        self.embedding = nn.Embedding(model.vocab_size, model.dim)
        faults = Faults(config.control, mesh.rank, mesh.device)
        self.layers = nn.ModuleList(Block(config, i, mesh, placement, faults) for i in range(model.num_layers))
        self.faults = faults
        self.num_moe_layers = model.num_layers - model.num_dense_layers
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
        x_BSD = self.embedding(tokens_BS)
        penalty, balance = x_BSD.new_zeros(()), x_BSD.new_zeros(())
        for block in self.layers:
            x_BSD, layer_penalty, layer_balance = self._layer(block, x_BSD)
            penalty, balance = penalty + layer_penalty, balance + layer_balance
        cross_entropy = traced("head", None, lambda x: self._cross_entropy(x, targets_BS), x_BSD)
        return Loss(cross_entropy, penalty, balance / max(1, self.num_moe_layers))

    def _layer(self, block: nn.Module, x_BSD: Tensor) -> LayerOut:
        arguments = (x_BSD, self.cos_Sh, self.sin_Sh)
        if self.config.train.recompute == "full" and torch.is_grad_enabled():
            return cast(LayerOut, checkpoint(block, *arguments, use_reentrant=False))
        return cast(LayerOut, block(*arguments))

    def _cross_entropy(self, x_BSD: Tensor, targets_BS: Tensor) -> Tensor:
        logits_BSV = self.head(self.norm(x_BSD)).float()
        return F.cross_entropy(logits_BSV.flatten(0, 1), targets_BS.flatten())

    def routers(self) -> list[Router]:
        """The routers from bottom to top."""
        return [m for m in self.modules() if isinstance(m, Router)]

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
