"""Activations in the host's memory between the forward and the backward pass, by torch's saved-tensor hooks.

On a GPU the copies run on a stream of their own, beside the computation. On a CPU they are plain copies: the same
path, for tests.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

MIN_BYTES = 32 * 1024
"""Smaller tensors stay: copying them costs more than they take."""


@dataclass
class _Host:
    """A tensor that is in the host's memory now."""

    copy: Tensor
    device: torch.device


class Offload(saved_tensors_hooks):
    """A context: what autograd saves inside of it goes to the host, weights and small tensors excepted."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(self._pack, self._unpack)
        self._stream = torch.Stream(device) if device.type == "cuda" else None
        self.num_bytes = 0
        """How much went to the host since this was made."""

    def _pack(self, tensor: Tensor) -> Tensor | _Host:
        size = tensor.numel() * tensor.element_size()
        if size < MIN_BYTES or isinstance(tensor if tensor._base is None else tensor._base, nn.Parameter):
            return tensor
        self.num_bytes += size
        copy = torch.empty_like(tensor, device="cpu", pin_memory=self._stream is not None)
        if self._stream is None:
            return _Host(copy.copy_(tensor), tensor.device)
        self._stream.wait_stream(torch.accelerator.current_stream())
        with self._stream:
            copy.copy_(tensor, non_blocking=True)
        tensor.record_stream(self._stream)
        return _Host(copy, tensor.device)

    def _unpack(self, packed: Tensor | _Host) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        if self._stream is None:
            return packed.copy
        torch.accelerator.current_stream().wait_stream(self._stream)
        return packed.copy.to(packed.device, non_blocking=True)
