"""Expert counts from inside regions that torch.compile made: through an operator that the compiler does not look into.

Compiled code has no room for a hook's bookkeeping, and breaking the graph would slow the model down, or fail under
``fullgraph=True``. So the counts, which are plain tensor operations, become part of the graph, and an opaque operator
hands them over when the graph runs. It claims to change a token, so that nobody removes or repeats it: a region that
is recomputed in the backward pass hands its counts over once. A token on the CPU also keeps the region out of CUDA
graphs, whose replays run no Python.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from moescope_hooks.active import active
from moescope_hooks.routing import Routing, router_figures

_TOKEN = torch.zeros(1)


@torch.library.custom_op("moescope::note_routing", mutates_args=("token",))
def _note_routing(token: Tensor, counts: Tensor, dropped: Tensor | None, figures: Tensor | None, layer: int) -> None:  # noqa: ARG001
    recorder = active()
    if recorder is None:
        return
    if counts.numel() == 0:
        recorder.lost(f"expert counts of layer {layer}", RuntimeError("they could not be read in a compiled region"))
    else:
        recorder.note_routing(layer, Routing(counts, dropped), figures)


@_note_routing.register_fake
def _shapes(*_arguments: object) -> None:
    """Nothing comes out."""


def note_compiled(layer: int, module: nn.Module, find: Callable[[], Routing | None]) -> None:
    """Put the handing over of a layer's counts into the graph that is being made."""
    if not module.training:
        return
    try:
        routing = find()
        figures = None if routing is None else router_figures(routing)
    except Exception:  # said when the graph runs: the compiler must not see it, nor the training loop
        routing, figures = Routing(torch.zeros(0, dtype=torch.int64)), None
    if routing is not None:
        _note_routing(_TOKEN, routing.counts_E.detach(), routing.dropped_E, figures, layer)
