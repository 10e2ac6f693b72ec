"""A model with two small MoE layers that report their routing, for tests of the hooks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from moescope_hooks.routing import Routing
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.hooks import RemovableHandle

DIM, EXPERTS, TOP_K = 8, 4, 2


class ToyLayer(nn.Module):
    """Top-2 of 4 linear experts; ``counted`` keeps a direct count of every training forward pass."""

    def __init__(self, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.gate = nn.Linear(DIM, EXPERTS, bias=False)
        self.experts = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(EXPERTS))
        self.counted: list[list[int]] = []
        self._hooks: OrderedDict[int, Callable[[Routing], None]] = OrderedDict()

    def register_routing_hook(self, hook: Callable[[Routing], None]) -> RemovableHandle:
        handle = RemovableHandle(self._hooks)
        self._hooks[handle.id] = hook
        return handle

    def forward(self, x: Tensor) -> Tensor:
        logits = self.gate(x)
        weights, chosen = logits.softmax(-1).topk(TOP_K)
        counts = torch.bincount(chosen.reshape(-1), minlength=EXPERTS)
        if self.training:
            self.counted.append(counts.tolist())
        for hook in self._hooks.values():
            hook(Routing(counts, logits_TE=logits, top_k=TOP_K))
        out = torch.stack([expert(x) for expert in self.experts], dim=1)
        picked = out.gather(1, chosen.unsqueeze(-1).expand(-1, -1, DIM))
        return x + (picked * weights.unsqueeze(-1)).sum(1)


class ToyModel(nn.Module):
    """Two layers, optionally recomputed in the backward pass."""

    def __init__(self, recompute: bool | None = None) -> None:
        """``recompute``: None keeps activations; True and False checkpoint with and without reentrant autograd."""
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(ToyLayer(i) for i in range(2))
        self.recompute = recompute

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x) if self.recompute is None else checkpoint(layer, x, use_reentrant=self.recompute)
        return x.square().mean()


def train_toy(model: ToyModel, obs: Any, steps: int = 3, microbatches: int = 2, *, mark: bool = True) -> list[float]:
    """Train with SGD on fixed inputs; returns the loss of each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        total = torch.zeros(())
        for _ in range(microbatches):
            if obs is not None and mark:
                obs.microbatch()
            loss = model(torch.randn(16, DIM, generator=generator).requires_grad_())
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(total))
        if obs is not None:
            obs.step(loss=total, tokens=16 * microbatches)
    return losses
