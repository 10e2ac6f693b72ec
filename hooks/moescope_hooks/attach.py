"""Finding the MoE layers of a model and listening to their routing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from moescope_hooks.routing import ReportsRouting, Routing

OnRouting = Callable[[int, nn.Module, Callable[[], Routing | None]], None]
"""Takes layer, module, and a function that gives the routing: it may fail, and is called where that does no harm."""
Extract = Callable[[nn.Module, tuple[Any, ...], Any], Routing | Tensor | None]


@dataclass(frozen=True)
class Attachment:
    """Where to read one MoE layer's counts: after each forward call of ``module``.

    ``extract(module, inputs, output)`` returns a :class:`Routing`, or the counts alone (int64 [num_experts]), or None
    when this call routed nothing. With ``before`` it runs ahead of the call and ``output`` is None.
    """

    layer: int
    module: nn.Module
    extract: Extract
    before: bool = False


MoELayers = Callable[[nn.Module], Iterable[Attachment]]


def attach(model: nn.Module, moe_layers: MoELayers | None, on_routing: OnRouting) -> list[RemovableHandle]:
    """Listen to every MoE layer of ``model``; returns the handles that end it.

    Layers are those that ``moe_layers(model)`` gives, else the modules that report their own routing.
    """
    if moe_layers is not None:
        return [_listen(attachment, on_routing) for attachment in moe_layers(model)]
    return [
        module.register_routing_hook(_reporter(module, on_routing))
        for module in model.modules()
        if isinstance(module, ReportsRouting)
    ]


def _reporter(module: Any, on_routing: OnRouting) -> Callable[[Routing], None]:
    return lambda routing: on_routing(module.layer, module, lambda: routing)


def _listen(attachment: Attachment, on_routing: OnRouting) -> RemovableHandle:
    def deliver(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        def routing() -> Routing | None:
            found = attachment.extract(module, inputs, output)
            return Routing(found) if isinstance(found, Tensor) else found

        on_routing(attachment.layer, module, routing)

    if attachment.before:
        return attachment.module.register_forward_pre_hook(lambda module, inputs: deliver(module, inputs, None))
    return attachment.module.register_forward_hook(deliver)
