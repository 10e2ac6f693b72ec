"""The routers' part of the view model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RouterLayer:
    """One layer's router over all steps that the hooks observed; fields are null where they were not recorded."""

    layer: int
    margin: float | None
    """Mean score gap between the last expert selected and the first one not selected."""
    entropy: float | None
    """Mean entropy of the router's distribution over its maximum: 1 undecided, 0 certain."""
    flipped_share: float | None
    """Share of the selections that a router computed in bfloat16 would have made differently."""
    dropped_share: float | None
    """Share of the assignments that capacity dropped."""


@dataclass(frozen=True, slots=True)
class HostTraffic:
    """What dispatch and combine send from one host to another, or within it, in both passes."""

    source: str
    target: str
    bytes_per_step: int
