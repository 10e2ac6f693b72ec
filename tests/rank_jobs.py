"""What the pool's ranks run for the tests: functions of a module that they can import."""

from __future__ import annotations

import torch
import torch.distributed as dist
from miniature import losses_of, mini_trainer, together

from moescope.trainer.comm import Splits, exchange_rows
from moescope.trainer.config import Config

STEPS = 20


def train(config: Config, ep_size: int, layout: str) -> tuple[list[float], dict[str, float]]:
    """Losses of ``STEPS`` steps and the validation losses after them."""
    trainer = mini_trainer(config, together(ep_size, layout))
    return losses_of(trainer, STEPS), trainer.validate()


def exchange(empty_rank: int) -> bool:
    """Each rank sends i + 1 rows to rank i, the empty rank none; the gradient of the sum comes back as ones."""
    group = together(4).expert
    rank = dist.get_rank()
    send = tuple(0 if rank == empty_rank else peer + 1 for peer in range(4))
    recv = tuple(0 if peer == empty_rank else rank + 1 for peer in range(4))
    x = torch.full((sum(send), 3), float(rank), requires_grad=True)
    out = exchange_rows(x, Splits(send, recv), group, "dispatch", 0)
    (out * torch.arange(1.0, 4.0)).sum().backward()
    expected = torch.cat([torch.full((n, 3), float(peer)) for peer, n in enumerate(recv)])
    assert x.grad is not None
    return torch.equal(out, expected) and torch.equal(x.grad, torch.arange(1.0, 4.0).expand_as(x))
