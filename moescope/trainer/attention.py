"""Causal self-attention, whole on every rank or with its heads shared out among a few.

Legend: B sequences, S positions, D model width, H heads (of this rank), h head width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F

from moescope.trainer.mesh import Group
from moescope.trainer.settings.model import ModelConfig


class Attention(nn.Module):
    """Causal self-attention with rotary positions; rows of ``qkv`` are ordered head by head: q, k, v."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.dim // config.num_heads
        self.qkv = nn.Linear(config.dim, 3 * config.dim, bias=False)
        self.out = nn.Linear(config.dim, config.dim, bias=False)

    def forward(self, x_BSD: Tensor, cos_Sh: Tensor, sin_Sh: Tensor) -> Tensor:
        """[B, S, D] to [B, S, D]."""
        q, k, v = (part.transpose(1, 2) for part in self.qkv(x_BSD).unflatten(-1, (-1, 3, self.head_dim)).unbind(-2))
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


def share_heads(model: nn.Module, group: Group, device: torch.device) -> None:
    """Share every attention's heads out among ``group``, by torch's DTensor.

    Each rank keeps its own sequences outside of attention. Inside, the group's sequences are gathered, every rank
    attends with its heads, and the sum over heads is scattered back: so nothing but attention knows of the group.
    """
    if group.handle is None:
        return
    mesh = DeviceMesh.from_group(group.handle, device.type)
    for module in model.modules():
        if isinstance(module, Attention):
            plan = {
                "qkv": ColwiseParallel(input_layouts=Shard(0)),
                "out": RowwiseParallel(output_layouts=Shard(0)),
            }
            parallelize_module(module, mesh, plan, src_data_rank=None)
