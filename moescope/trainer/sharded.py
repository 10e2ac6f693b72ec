"""Weights and optimizer state shared out among the ranks that hold the same weights, by torch's fully_shard (FSDP2).

A rank keeps a slice of every weight and of its optimizer state. Weights are gathered once per step, at its first
forward pass, and gradients summed and sliced in the backward pass of its last microbatch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from moescope.trainer.comm import sum_over
from moescope.trainer.experts import Experts
from moescope.trainer.grads import Buckets, local_part
from moescope.trainer.mesh import Group, Mesh
from moescope.trainer.model import Transformer


def shard(model: Transformer, mesh: Mesh) -> None:
    """Share out the model's weights: an expert's among the ranks that hold it, all others among all ranks."""
    experts = [module for module in model.modules() if isinstance(module, Experts)]
    if mesh.replica.size > 1:
        among = _device_mesh(mesh.replica, mesh.device)
        for module in experts:
            fully_shard(module, mesh=among, reshard_after_forward=False)
    ignored = {p for module in experts for p in module.parameters()} if mesh.replica.size == 1 else None
    among = _device_mesh(mesh.world, mesh.device)
    fully_shard(model, mesh=among, reshard_after_forward=False, ignored_params=ignored)


class ShardedGradients:
    """The gradients of a model that :func:`shard` shared out; like :class:`moescope.trainer.grads.Gradients`."""

    def __init__(self, model: Transformer, mesh: Mesh, bucket_bytes: int) -> None:
        self._model = _sharded(model)
        self._mesh = mesh
        self._sharded = [p for p in model.parameters() if isinstance(p, DTensor)]
        self._sharded_experts = [p for p in model.expert_parameters() if isinstance(p, DTensor)]
        whole = [p for p in model.parameters() if not isinstance(p, DTensor)]
        self._experts = Buckets(whole, mesh.replica, bucket_bytes)

    def zero(self) -> None:
        """Forget the gradients."""
        for parameter in self._sharded:
            parameter.grad = None
        self._experts.zero()

    def before_backward(self, *, last: bool) -> None:
        """Only the last microbatch of a step reduces gradients and lets the gathered weights go."""
        self._model.set_requires_gradient_sync(last)
        self._model.set_reshard_after_backward(last)

    def reduce(self) -> None:
        """What was reduced is a mean over the ranks that share a weight; make it one over all, as ``Gradients`` do."""
        self._experts.scale(1.0 / self._mesh.world.size)
        for parameter in self._sharded_experts:
            if parameter.grad is not None:
                local_part(parameter.grad).mul_(1.0 / self._mesh.expert.size)

    def clip(self, max_norm: float) -> Tensor:
        """Scale the whole model's gradient to at most ``max_norm`` (0: leave it); returns its norm before."""
        gradients = [*(local_part(p.grad) for p in self._sharded if p.grad is not None), *self._experts.buffers]
        squares = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
        norm = sum_over(squares, self._mesh.world).sqrt()
        if max_norm > 0:
            factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
            for gradient in gradients:
                gradient.mul_(factor)
        return norm


def _sharded(module: torch.nn.Module) -> FSDPModule:
    if not isinstance(module, FSDPModule):
        raise TypeError(f"{type(module).__name__} was not shared out")
    return module


def _device_mesh(group: Group, device: torch.device) -> DeviceMesh:
    if group.handle is None:
        raise ValueError("a rank alone has nobody to share weights out to")
    return DeviceMesh.from_group(group.handle, device.type)
