"""Gradients: flat buckets, their reduction over the ranks that share a weight, and the norm over the whole model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from moescope_hooks.ranges import phase_range, start_collective
from torch import Tensor, nn

from moescope.trainer.comm import finish, start_sum, sum_over
from moescope.trainer.mesh import Group, Mesh
from moescope.trainer.model import Transformer
from moescope.trainer.settings.training import TrainConfig


class Buckets:
    """Gradients of some parameters as views into few flat buffers, so that one collective reduces many of them."""

    def __init__(self, parameters: Sequence[nn.Parameter], group: Group, bucket_bytes: int) -> None:
        """``group``: the ranks that hold the same values of these parameters."""
        self.group = group
        self.buffers: list[Tensor] = []
        bucket: list[nn.Parameter] = []
        size = 0
        for parameter in reversed(parameters):  # the order in which backward finishes them
            parameter_bytes = parameter.numel() * parameter.element_size()
            if bucket and size + parameter_bytes > bucket_bytes:
                self._close(bucket)
                bucket, size = [], 0
            bucket.append(parameter)
            size += parameter_bytes
        if bucket:
            self._close(bucket)

    def _close(self, bucket: list[nn.Parameter]) -> None:
        buffer = bucket[0].new_zeros(sum(p.numel() for p in bucket))
        start = 0
        for parameter in bucket:
            parameter.grad = buffer[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
        self.buffers.append(buffer)

    def zero(self) -> None:
        """Forget the gradients, keeping the views."""
        for buffer in self.buffers:
            buffer.zero_()

    def squares(self) -> Tensor:
        """Sum of squares of all gradients here."""
        return torch.stack([buffer.square().sum() for buffer in self.buffers]).sum()

    def scale(self, factor: Tensor | float) -> None:
        """Multiply all gradients."""
        for buffer in self.buffers:
            buffer.mul_(factor)


class Gradients:
    """All gradients of this rank: those of shared weights, and those of its experts."""

    def __init__(self, model: Transformer, mesh: Mesh, bucket_bytes: int) -> None:
        self.mesh = mesh
        expert_parameters = model.expert_parameters()
        ids = {id(p) for p in expert_parameters}
        shared_parameters = [p for p in model.parameters() if id(p) not in ids]
        self.shared = Buckets(shared_parameters, mesh.world, bucket_bytes)
        self.experts = Buckets(expert_parameters, mesh.replica, bucket_bytes)

    def zero(self) -> None:
        """Forget the gradients."""
        self.shared.zero()
        self.experts.zero()

    def reduce(self) -> None:
        """Make every gradient the mean over the ranks' losses.

        Shared weights sum over all ranks. An expert has already gathered, through the all-to-all of its expert
        group, the gradients of the tokens of that group; summing over its replicas completes the sum over all ranks.
        """
        with phase_range("grad_reduce"):
            both = (self.shared, self.experts)
            pending = [_start(buffer, buckets.group) for buckets in both for buffer in buckets.buffers]
            for wait_for in pending:
                wait_for()
            for buckets in both:
                buckets.scale(1.0 / self.mesh.world.size)

    def clip(self, max_norm: float) -> Tensor:
        """Scale the whole model's gradient to at most ``max_norm`` (0: leave it); returns its norm before."""
        expert_squares = self.experts.squares() if self.experts.buffers else self.shared.buffers[0].new_zeros(())
        norm = (self.shared.squares() + sum_over(expert_squares, self.mesh.expert)).sqrt()
        if max_norm > 0:
            factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
            self.shared.scale(factor)
            self.experts.scale(factor)
        return norm


def _start(buffer: Tensor, group: Group) -> Callable[[], None]:
    """Start one bucket's reduction; the result waits for it."""
    if group.handle is None:
        return lambda: None
    size = [buffer.numel() * buffer.element_size()]
    recorded = start_collective("grad_reduce", group=group.name, send_bytes=size, recv_bytes=size)
    started = start_sum(buffer, group)

    def wait_for() -> None:
        finish(started, group)
        recorded()

    return wait_for


def optimizer_groups(model: Transformer, config: TrainConfig) -> list[dict[str, object]]:
    """AdamW's groups: matrices decay, vectors (norms) do not, routers learn at a rate of their own (``rate_ratio``)."""
    routers = {id(router.weight_ED) for router in model.routers()}
    others = [p for p in model.parameters() if id(p) not in routers]
    decay, ratio = config.weight_decay, config.router_learning_rate_ratio
    return [
        {"params": [p for p in others if p.dim() > 1], "weight_decay": decay, "rate_ratio": 1.0},
        {"params": [p for p in others if p.dim() <= 1], "weight_decay": 0.0, "rate_ratio": 1.0},
        {"params": [r.weight_ED for r in model.routers()], "weight_decay": decay, "rate_ratio": ratio},
    ]
