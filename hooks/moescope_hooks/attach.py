"""Finding the MoE layers of a model and listening to their routing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from moescope_hooks.compiled import note_compiled
from moescope_hooks.routing import ReportsRouting, Routing

OnRouting = Callable[[int, nn.Module, Callable[[], Routing | None]], None]
"""Takes layer, module, and a function that gives the routing: it may fail, and is called where that does no harm."""


@dataclass(frozen=True)
class Call:
    """One forward call of a module."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Any
    """None when read before the call."""

    def argument(self, position: int, name: str) -> Any:
        """An argument of the call, however it was passed."""
        return self.kwargs[name] if name in self.kwargs else self.args[position]


Extract = Callable[[Call], Routing | Tensor | None]


@dataclass(frozen=True)
class Attachment:
    """Where to read one MoE layer's counts: at each forward call of ``module``.

    ``extract(call)`` returns a :class:`Routing`, or the counts alone (int64 [num_experts]), or None when this call
    routed nothing. With ``before`` it runs ahead of the call, on its arguments.
    """

    layer: int
    module: nn.Module
    extract: Extract
    before: bool = False


MoELayers = Callable[[nn.Module], Iterable[Attachment]]


def attach(model: nn.Module, moe_layers: MoELayers, on_routing: OnRouting) -> list[RemovableHandle]:
    """Listen to every MoE layer that ``moe_layers(model)`` gives and to those that report their own routing.

    Returns the handles that end it. In compiled regions counts come through :mod:`moescope_hooks.compiled` instead.
    """
    handles = [_listen(attachment, on_routing) for attachment in moe_layers(model)]
    for module in model.modules():
        if isinstance(module, ReportsRouting):
            handles.append(module.register_routing_hook(_reporter(module, on_routing)))
    return handles


def _local(counts: Tensor) -> Tensor:
    """Of a distributed tensor, what this rank holds: the counts of its own tokens."""
    return counts.to_local() if hasattr(counts, "to_local") else counts


def _reporter(module: Any, on_routing: OnRouting) -> Callable[[Routing], None]:
    def report(routing: Routing) -> None:
        deliver = note_compiled if torch.compiler.is_compiling() else on_routing
        deliver(module.layer, module, lambda: routing)

    return report


def _listen(attachment: Attachment, on_routing: OnRouting) -> RemovableHandle:
    def deliver(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any = None) -> None:
        def routing() -> Routing | None:
            found = attachment.extract(Call(module, args, kwargs, output))
            return Routing(_local(found)) if isinstance(found, Tensor) else found

        deliver_routing = note_compiled if torch.compiler.is_compiling() else on_routing
        deliver_routing(attachment.layer, module, routing)

    if attachment.before:
        return attachment.module.register_forward_pre_hook(deliver, with_kwargs=True)
    return attachment.module.register_forward_hook(deliver, with_kwargs=True)
