"""The rows of one step, gathered on the device and turned into plain values on the writer's thread."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from moescope_hooks.blocks import Collective, CollectiveRow, LoadRow, collective_block, load_blocks
from moescope_hooks.routing import Routing
from moescope_hooks.stamps import ReadStamps, Stamp, fetch_later
from moescope_hooks.writer import Rows


@dataclass(frozen=True)
class _Load:
    microbatch: int
    layer: int
    counts: Tensor
    dropped: Tensor | None
    figures: Tensor | None


@dataclass
class StepRecord:
    """Everything one rank notes during one step."""

    rank: int
    step: int
    start_ns: int = 0
    end_ns: int | None = None
    tokens: int | None = None
    memory_peak: tuple[int, int] | None = None
    sizes: tuple[int | None, int | None, int | None] = (None, None, None)
    _loads: dict[tuple[int, int], _Load] = field(default_factory=dict)
    _num_loads: dict[int, int] = field(default_factory=dict)
    _collectives: list[tuple[Collective, int, Stamp, Stamp]] = field(default_factory=list)

    def num_loads(self, layer: int) -> int:
        """How many microbatches of this layer were noted already."""
        return self._num_loads.get(layer, 0)

    @torch.no_grad()
    def add_load(self, microbatch: int, layer: int, routing: Routing, figures: Tensor | None) -> None:
        """Note a layer's counts; a second call for the same microbatch (a recomputed forward pass) is ignored."""
        if (microbatch, layer) in self._loads:
            return
        self._num_loads[layer] = self.num_loads(layer) + 1
        counts = routing.counts_E.detach().to(torch.int64, copy=True)
        dropped = None if routing.dropped_E is None else routing.dropped_E.detach().to(torch.int64, copy=True)
        self._loads[microbatch, layer] = _Load(microbatch, layer, counts, dropped, figures)

    def add_collective(self, collective: Collective, sequence: int, arrival: Stamp, end: Stamp) -> None:
        """Note a collective, its number within its group, and its two moments."""
        self._collectives.append((collective, sequence, arrival, end))

    @torch.no_grad()
    def seal(
        self, values: Mapping[str, Tensor | float | None], read_stamps: ReadStamps
    ) -> Callable[[], Iterable[tuple[str, Rows]]]:
        """Start copying to the host; the result, called on the writer's thread, gives the rows by table."""
        loads = list(self._loads.values())
        tensors = [t for load in loads for t in (load.counts, load.dropped, load.figures) if t is not None]
        scalars = {k: v for k, v in values.items() if isinstance(v, Tensor)}
        copies = [v.detach().to(torch.float64, copy=True) for v in scalars.values()]
        fetch = fetch_later(tensors + copies)

        def rows() -> list[tuple[str, Rows]]:
            fetched = iter(fetch())
            load_rows = [_load_row(load, fetched) for load in loads]
            known = {k: float(v) for k, v in values.items() if v is not None and not isinstance(v, Tensor)}
            known |= {k: float(next(fetched)) for k in scalars}
            stamps = read_stamps([s for _, _, arrival, end in self._collectives for s in (arrival, end)])
            collective_rows = [
                CollectiveRow(collective, sequence, stamps[2 * i], stamps[2 * i + 1])
                for i, (collective, sequence, _, _) in enumerate(self._collectives)
            ]
            return [
                ("expert_load", load_blocks(self.rank, self.step, load_rows)),
                ("collective", collective_block(self.rank, self.step, collective_rows)),
                ("step", [self._step_row(known)]),
            ]

        return rows

    def _step_row(self, known: Mapping[str, float]) -> Mapping[str, Any]:
        allocated, reserved = self.memory_peak or (None, None)
        parameters, gradients, optimizer = self.sizes
        return {
            "rank": self.rank,
            "step": self.step,
            "start_ns": self.start_ns,
            "end_ns": self.end_ns,
            "tokens": self.tokens,
            **{name: known.get(name) for name in ("loss", "validation_loss", "gradient_norm")},
            "memory_allocated_peak_bytes": allocated,
            "memory_reserved_peak_bytes": reserved,
            "parameter_bytes": parameters,
            "gradient_bytes": gradients,
            "optimizer_bytes": optimizer,
        }


def _load_row(load: _Load, fetched: Iterator[Tensor]) -> LoadRow:
    counts = next(fetched)
    dropped = None if load.dropped is None else next(fetched)
    entropy, margin, flips = (None, None, None) if load.figures is None else next(fetched).tolist()
    bf16_flips = None if flips is None or math.isnan(flips) else int(flips)
    return LoadRow(load.microbatch, load.layer, counts, dropped, (entropy, margin, bf16_flips))
