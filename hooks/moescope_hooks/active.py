"""The recorder of this process: what ranges and collectives inside a model report to while someone observes."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from moescope_hooks.blocks import Collective
from moescope_hooks.routing import Routing
from moescope_hooks.stamps import Stamp


class Recorder(Protocol):
    """What an observation offers to the inside of a model; none of it raises."""

    current_microbatch: int

    @property
    def tracing(self) -> bool:
        """Whether a trace is being recorded now."""
        ...

    def stamp(self) -> Stamp | None:
        """This moment, or None where it could not be taken."""
        ...

    def add_collective(self, collective: Collective, arrival: Stamp | None) -> None:
        """Record a collective that is complete now and whose rank was ready at ``arrival``."""
        ...

    def note_routing(self, layer: int, routing: Routing, figures: Tensor | None) -> None:
        """Record a layer's counts, if this forward pass is to count, with :func:`router_figures` of it."""
        ...

    def lost(self, what: str, error: Exception) -> None:
        """Note that ``what`` is missing from the telemetry."""
        ...


class _Active:
    recorder: Recorder | None = None


def set_active(recorder: Recorder | None) -> None:
    """Make ``recorder`` the one that the ranges of this process report to."""
    _Active.recorder = recorder


def active() -> Recorder | None:
    """The recorder of this process, or None."""
    return _Active.recorder
