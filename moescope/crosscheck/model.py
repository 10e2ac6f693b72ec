"""What a cross-check found, as plain dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FigureCheck:
    """One figure: ours, how each rule of the other tool changes it, and the other tool's.

    ``ours + sum(changes) + unexplained == theirs``; in ``unit``, ``us`` or ``percent``.
    """

    figure: str
    unit: str
    ours: float | None
    changes: Mapping[str, float]
    theirs: float | None
    unexplained: float | None
    """None where only one side has the figure."""


@dataclass(frozen=True, slots=True)
class IdleCheck:
    """Gaps on one stream of one kind, microseconds: ours by the other tool's rules, and theirs."""

    stream: int
    kind: str
    ours_us: float
    theirs_us: float


@dataclass(frozen=True, slots=True)
class QueueCheck:
    """Operations launched and not yet begun on one stream, over the moments at which their number changes."""

    stream: int
    ours_mean: float | None
    ours_max: float | None
    theirs_mean: float
    theirs_max: float


@dataclass(frozen=True, slots=True)
class RankCheck:
    """One rank's trace window. ``error``: why the other tool gave nothing for it; then the rest is empty."""

    rank: int
    window: int
    file: str
    error: str
    rules: Mapping[str, str]
    """Rule of the other tool that changes a figure here -> what it is."""
    figures: tuple[FigureCheck, ...]
    idle: tuple[IdleCheck, ...]
    queue: tuple[QueueCheck, ...]
    critical_path_percent: Mapping[str, float] | None
    """The first step's critical path by what bounds it; we find none within one rank."""
    failed: Mapping[str, str]
    """Part that the other tool could not compute -> its reason."""

    @property
    def agrees(self) -> bool:
        """Whether every figure that both have is explained to the last digit that the other tool prints."""
        known = [figure for figure in self.figures if figure.unexplained is not None]
        within = {"us": 0.5, "percent": 0.0051}
        return bool(known) and all(abs(figure.unexplained or 0.0) <= within[figure.unit] for figure in known)


@dataclass(frozen=True, slots=True)
class CrossCheck:
    """``skipped``: what was not checked, and why."""

    tool: str
    version: str
    ranks: tuple[RankCheck, ...]
    skipped: tuple[str, ...]
    notes: tuple[str, ...]
