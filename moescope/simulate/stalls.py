"""Pauses of a rank's CPU thread, and where in a step they fall."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

ALLOCATOR_RETRY = (("cudaMalloc", 0.1), ("cudaFree", 0.5), ("cudaMalloc", 0.4))
"""A failed request, cached blocks given back (which waits for the device), a second request; shares of the time."""


@dataclass(frozen=True, slots=True)
class Stall:
    """One pause."""

    site: str
    """``load`` (the next batch comes late), ``forward`` (anywhere in the forward pass) or ``experts`` (before them)."""
    duration_ns: FloatArray
    """[ranks]."""
    at: float = 0.0
    """Where among the possible places of the site, 0 to 1."""
    calls: tuple[tuple[str, float], ...] = ()
    """Runtime calls that fill the time; empty: nothing is recorded, the thread just stands still."""
