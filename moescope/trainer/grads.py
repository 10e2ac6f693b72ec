"""Gradients: flat buckets, their reduction over the ranks that share a weight, and the norm over the whole model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from moescope_hooks.ranges import phase_range, start_collective
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from moescope.trainer.comm import finish, start_sum, sum_over
from moescope.trainer.mesh import Group, Mesh
from moescope.trainer.model import Transformer
from moescope.trainer.settings.training import TrainConfig


def local_part(tensor: Tensor) -> Tensor:
    """Of a distributed tensor what this rank holds, else the tensor; without gradient."""
    local: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.detach()


class Buckets:
    """Gradients of some parameters as views into few flat buffers, so that one collective reduces many of them."""

    def __init__(self, parameters: Sequence[nn.Parameter], group: Group, bucket_bytes: int) -> None:
        """``group``: the ranks that hold the same values of these parameters."""
        self.group = group
        self.buffers: list[Tensor] = []
        bucket: list[nn.Parameter] = []
        size = 0
        for parameter in reversed(parameters):  # the order in which backward finishes them
            parameter_bytes = local_part(parameter).numel() * parameter.element_size()
            if bucket and size + parameter_bytes > bucket_bytes:
                self._close(bucket)
                bucket, size = [], 0
            bucket.append(parameter)
            size += parameter_bytes
        if bucket:
            self._close(bucket)

    def _close(self, bucket: list[nn.Parameter]) -> None:
        buffer = local_part(bucket[0]).new_zeros(sum(local_part(p).numel() for p in bucket))
        start = 0
        for parameter in bucket:
            local = local_part(parameter)
            view = buffer[start : start + local.numel()].view_as(local)
            if isinstance(parameter, DTensor):
                view = DTensor.from_local(view, parameter.device_mesh, parameter.placements)
            parameter.grad = view
            start += local.numel()
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
    """All gradients of this rank: of weights that all ranks share, of its attention heads, and of its experts."""

    def __init__(self, model: Transformer, mesh: Mesh, bucket_bytes: int) -> None:
        self.mesh = mesh
        experts = model.expert_parameters()
        heads = [p for p in model.parameters() if isinstance(p, DTensor)]
        apart = {id(p) for p in (*experts, *heads)}
        self.shared = Buckets([p for p in model.parameters() if id(p) not in apart], mesh.world, bucket_bytes)
        self.heads = Buckets(heads, mesh.tensor_replica, bucket_bytes)
        self.experts = Buckets(experts, mesh.replica, bucket_bytes)
        self._all = (self.shared, self.heads, self.experts)

    def zero(self) -> None:
        """Forget the gradients."""
        for buckets in self._all:
            buckets.zero()

    def before_backward(self, *, last: bool) -> None:
        """Nothing to prepare; ``last``: whether the step's last microbatch comes next."""

    def reduce(self) -> None:
        """Make every gradient the mean over the ranks' losses.

        Shared weights sum over all ranks. An expert has already gathered, through the all-to-all of its expert
        group, the gradients of the tokens of that group; summing over its replicas completes the sum over all ranks.
        Likewise a head, through the gathering of the sequences of its tensor group.
        """
        with phase_range("grad_reduce"):
            pending = [_start(buffer, buckets.group) for buckets in self._all for buffer in buckets.buffers]
            for wait_for in pending:
                wait_for()
            for buckets in self._all:
                buckets.scale(1.0 / self.mesh.world.size)

    def clip(self, max_norm: float) -> Tensor:
        """Scale the whole model's gradient to at most ``max_norm`` (0: leave it); returns its norm before."""
        squares = self.shared.squares()
        for buckets, group in ((self.experts, self.mesh.expert), (self.heads, self.mesh.tensor)):
            part = buckets.squares() if buckets.buffers else torch.zeros_like(squares)
            squares = squares + sum_over(part, group)
        norm = squares.sqrt()
        if max_norm > 0:
            factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
            for buckets in self._all:
                buckets.scale(factor)
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
    """AdamW's groups: matrices decay, vectors (norms) do not, routers learn at a rate of their own (``rate_ratio``).

    A group holds whole tensors or distributed ones: the fused optimizer takes no mixture.
    """
    routers = {id(router.weight_ED) for router in model.routers()}
    groups: dict[tuple[float, float, bool], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        decay = config.weight_decay if parameter.dim() > 1 else 0.0
        ratio = config.router_learning_rate_ratio if id(parameter) in routers else 1.0
        groups.setdefault((decay, ratio, isinstance(parameter, DTensor)), []).append(parameter)
    return [{"params": held, "weight_decay": key[0], "rate_ratio": key[1]} for key, held in groups.items()]
