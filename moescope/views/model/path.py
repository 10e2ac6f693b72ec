"""The critical path of a step, as the outputs show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PathRank:
    """How much of the path runs on one rank."""

    rank: int
    ns_per_step: int
    share_of_step: float


@dataclass(frozen=True, slots=True)
class PathCause:
    """What the path would be shorter by without one cause; ``rank`` is null where no rank stands out."""

    cause: str
    rank: int | None
    ns_per_step: int
    share_of_step: float


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The chain of work and transfers across ranks that the step's length hangs on, per step."""

    length_ns: int
    parts_ns: Mapping[str, int]
    """``compute``, ``transfer``, ``host``, ``memory``, ``dependency``; they sum to the length."""
    ranks: tuple[PathRank, ...]
    """Longest first."""
    causes: tuple[PathCause, ...]
    """Largest first; what is left of the length is work that any rank would have to do."""
    changes_per_step: float
    """How often the path goes over to another rank."""
