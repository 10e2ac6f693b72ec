"""The MoE layers of frameworks, found by the names of their classes: nothing of theirs is imported.

| framework | listens to | counts |
|---|---|---|
| Hugging Face transformers 5 | ``*Experts`` modules, before | of ``top_k_index``; beyond the last expert: elsewhere |
| Hugging Face transformers 4 | the ``gate`` of ``*SparseMoeBlock`` | of the ``top_k`` largest logits |
| torchtitan | ``RoutedExperts``, before | ``num_local_tokens_per_expert_E`` |
| Megatron-Core | ``TopKRouter`` | columns of the ``routing_map`` |
| DeepSpeed-MoE | ``MOELayer`` | ``exp_counts`` |
| OLMo-core | ``MoERouter``, ``MoERouterV2`` | ``batch_size_per_expert``, the third output |
| MegaBlocks | ``LearnedRouter`` | of the expert indices, the third output |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from moescope_hooks.attach import Attachment, Call
from moescope_hooks.routing import Routing

Finder = Callable[[int, nn.Module], Attachment | None]


def framework_layers(model: nn.Module) -> Iterator[Attachment]:
    """One attachment for every MoE layer of a framework that is known."""
    for name, module in model.named_modules():
        for find in FINDERS:
            attachment = find(_layer_of(name, module), module)
            if attachment is not None:
                yield attachment
                break


def _layer_of(name: str, module: nn.Module) -> int:
    """A module's decoder layer: what it says itself, else the first number in its name."""
    number = getattr(module, "layer_idx", None)
    if isinstance(number, int):
        return number
    match = re.search(r"(?:^|\.)(\d+)(?:\.|$)", name)
    return int(match[1]) if match else 0


def _is(module: nn.Module, package: str, pattern: str) -> bool:
    """Whether one of the module's classes is of ``package`` and has a name that matches; wrappers subclass."""
    return any(
        kind.__module__.partition(".")[0] == package and re.fullmatch(pattern, kind.__name__)
        for kind in type(module).__mro__
    )


def _transformers_experts(layer: int, module: nn.Module) -> Attachment | None:
    num_experts = getattr(module, "num_experts", None)
    is_experts = _is(module, "transformers", r"\w*Experts") and not isinstance(module, nn.ModuleList)
    if not is_experts or not isinstance(num_experts, int):
        return None

    def extract(call: Call) -> Tensor | None:
        if len(call.args) + len(call.kwargs) < 3:
            return None
        return _count(call.argument(1, "top_k_index"), num_experts)

    return Attachment(layer, module, extract, before=True)


def _transformers_gate(layer: int, module: nn.Module) -> Attachment | None:
    """The linear gate of version 4; in version 5 the experts module is found instead."""
    gate, top_k = getattr(module, "gate", None), getattr(module, "top_k", None)
    if (
        not _is(module, "transformers", r"\w*SparseMoeBlock")
        or type(gate) is not nn.Linear
        or not isinstance(top_k, int)
    ):
        return None

    def extract(call: Call) -> Routing:
        logits_TE = call.output.detach().reshape(-1, gate.out_features)
        chosen = logits_TE.topk(top_k, dim=-1).indices
        return Routing(_count(chosen, gate.out_features), logits_TE=logits_TE, top_k=top_k)

    return Attachment(layer, gate, extract)


def _torchtitan(layer: int, module: nn.Module) -> Attachment | None:
    if not _is(module, "torchtitan", "RoutedExperts"):
        return None
    return Attachment(layer, module, lambda call: call.argument(3, "num_local_tokens_per_expert_E"), before=True)


def _megatron(layer: int, module: nn.Module) -> Attachment | None:
    """Its layers count from 1. The map is what remains after capacity, where Megatron drops in the router."""
    if not _is(module, "megatron", "TopKRouter"):
        return None
    number = getattr(module, "layer_number", None)
    return Attachment(number - 1 if isinstance(number, int) else layer, module, lambda call: call.output[1].sum(dim=0))


def _deepspeed(layer: int, module: nn.Module) -> Attachment | None:
    if not _is(module, "deepspeed", "MOELayer"):
        return None

    def extract(call: Call) -> Tensor | None:
        counts: Any = call.module.exp_counts
        return None if counts is None else torch.as_tensor(counts)

    return Attachment(layer, module, extract)


def _olmo(layer: int, module: nn.Module) -> Attachment | None:
    if not _is(module, "olmo_core", r"MoE\w*Router(V2)?"):
        return None
    return Attachment(layer, module, lambda call: call.output[2])


def _megablocks(layer: int, module: nn.Module) -> Attachment | None:
    if not _is(module, "megablocks", "LearnedRouter"):
        return None
    return Attachment(layer, module, lambda call: _count(call.output[2], call.output[0].shape[-1]))


FINDERS: tuple[Finder, ...] = (
    _transformers_experts,
    _transformers_gate,
    _torchtitan,
    _megatron,
    _deepspeed,
    _olmo,
    _megablocks,
)


def _count(indices: Tensor, num_experts: int) -> Tensor:
    """How often each expert is chosen, [num_experts]; indices beyond the last expert are those of other ranks."""
    counts = torch.zeros(num_experts + 1, dtype=torch.int64, device=indices.device)
    chosen = indices.detach().reshape(-1).clamp(max=num_experts).long()
    return counts.scatter_add_(0, chosen, torch.ones_like(chosen))[:num_experts]
