"""What bounds at known times say of a line whose slope is not known: an offset between clocks that drift.

An offset ``a + b * t`` lies below some values at some times and above others at others. The pairs (a, b) that satisfy
all of them form a convex polygon; its shadow on a bounds the offset at t = 0, that on b the drift, with nothing assumed
of the drift but how steep a clock's can be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

NUM_HALVINGS = 80
"""Of a range of slopes below 1e-3, to 1e-27: times of 1e13 ns then tell offsets to far below a nanosecond."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """``value[i]`` bounds the offset at ``time[i]``; [n] each, n may be 0."""

    time: FloatArray
    value: FloatArray

    def lowest(self, slope: float) -> float:
        """The least offset at t = 0 that the lines of this slope through the bounds have."""
        return float(np.min(self.value - slope * self.time, initial=np.inf))

    def highest(self, slope: float) -> float:
        """The greatest such offset."""
        return float(np.max(self.value - slope * self.time, initial=-np.inf))


@dataclass(frozen=True, slots=True)
class Shadow:
    """Ranges that contain the offset at t = 0 and the slope; those of the offset may be infinite."""

    low: float
    high: float
    slope_low: float
    slope_high: float
    slope: float
    """Where the polygon is widest: the slope furthest from any contradiction."""


def shadow(above: Bounds, below: Bounds, steepest: float) -> Shadow | None:
    """The ranges of the lines under all of ``above`` and over all of ``below``; None where there is no such line.

    ``steepest``: the largest slope either way.
    """

    def room(slope: float) -> float:
        return above.lowest(slope) - below.highest(slope)

    if not len(above.time) or not len(below.time):
        return Shadow(*_open(above, below, steepest), -steepest, steepest, 0.0)
    slope = _peak(room, -steepest, steepest)
    if room(slope) < 0:
        return None
    first, last = _edge(room, slope, -steepest), _edge(room, slope, steepest)
    return Shadow(
        low=-_highest(lambda at: -below.highest(at), first, last),
        high=_highest(above.lowest, first, last),
        slope_low=first,
        slope_high=last,
        slope=slope,
    )


def _open(above: Bounds, below: Bounds, steepest: float) -> tuple[float, float]:
    """The offset's range where one side has no bounds, so that no slope can be excluded."""
    return -_highest(lambda at: -below.highest(at), -steepest, steepest), _highest(above.lowest, -steepest, steepest)


def _highest(concave: Callable[[float], float], low: float, high: float) -> float:
    return concave(_peak(concave, low, high))


def _peak(concave: Callable[[float], float], low: float, high: float) -> float:
    """Where a concave function is highest, by thirds."""
    for _ in range(2 * NUM_HALVINGS):
        third = (high - low) / 3
        if concave(low + third) < concave(high - third):
            low += third
        else:
            high -= third
    return (low + high) / 2


def _edge(concave: Callable[[float], float], inside: float, outside: float) -> float:
    """The last slope on the way from ``inside`` to ``outside`` at which the function is not negative."""
    if concave(outside) >= 0:
        return outside
    for _ in range(NUM_HALVINGS):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if concave(middle) >= 0 else (inside, middle)
    return outside
