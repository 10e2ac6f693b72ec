"""Feed-forward blocks: the dense SwiGLU, and this rank's experts.

Legend: T tokens, D model width, F inner width, e experts of this rank, R rows received.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from moescope.trainer.settings.rules import ConfigError


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
    """This rank's experts, one after the other or in grouped calls."""

    def __init__(self, experts: list[int], dim: int, hidden_dim: int, compute: str) -> None:
        """``experts``: the global numbers of this rank's experts, ascending; ``compute``: loop or grouped."""
        super().__init__()
        self.experts = experts
        self.gate_eDF = nn.Parameter(torch.empty(len(experts), dim, hidden_dim))
        self.up_eDF = nn.Parameter(torch.empty(len(experts), dim, hidden_dim))
        self.down_eFD = nn.Parameter(torch.empty(len(experts), hidden_dim, dim))
        self._grouped_mm: Any = getattr(F, "grouped_mm", None)
        self.grouped = compute == "grouped"
        if self.grouped and self._grouped_mm is None:
            raise ConfigError("moe.expert_compute", compute, f"torch {torch.__version__} has no grouped_mm; use loop")

    def forward(self, x_RD: Tensor, counts_e: list[int]) -> Tensor:
        """Rows in expert order, ``counts_e[i]`` of them for expert i; an expert without rows still gets a gradient."""
        return self._in_groups(x_RD, counts_e) if self.grouped else self._one_by_one(x_RD, counts_e)

    def _one_by_one(self, x_RD: Tensor, counts_e: list[int]) -> Tensor:
        weights = zip(self.gate_eDF.unbind(), self.up_eDF.unbind(), self.down_eFD.unbind(), strict=True)
        outs = [
            (F.silu(x @ gate_DF) * (x @ up_DF)) @ down_FD
            for x, (gate_DF, up_DF, down_FD) in zip(torch.split(x_RD, counts_e), weights, strict=True)
        ]
        return torch.cat(outs)

    def _in_groups(self, x_RD: Tensor, counts_e: list[int]) -> Tensor:
        ends_e = torch.tensor(list(accumulate(counts_e)), dtype=torch.int32).to(x_RD.device, non_blocking=True)
        dtype = (
            torch.get_autocast_dtype(x_RD.device.type) if torch.is_autocast_enabled(x_RD.device.type) else x_RD.dtype
        )
        gate, up, down = (w.to(dtype) for w in (self.gate_eDF, self.up_eDF, self.down_eFD))
        x = x_RD.to(dtype)
        hidden_RF = F.silu(self._grouped_mm(x, gate, offs=ends_e)) * self._grouped_mm(x, up, offs=ends_e)
        out: Tensor = self._grouped_mm(hidden_RF, down, offs=ends_e)
        return out
