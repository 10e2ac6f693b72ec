"""Columns of exact nanoseconds.

Decoded numbers are used only where they are known to give the text's nanosecond: integers, and floats below 2**43
(a float64 there is off by less than half a nanosecond); larger fractions are read from the text itself.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from moescope.trace.decimals import LARGEST_US, microseconds_to_ns

IntArray = npt.NDArray[np.int64]
_EXACT_FLOAT_US = 2.0**43


def ns_of_integers(values: IntArray) -> IntArray | None:
    """Nanoseconds of whole microseconds; None where one is no time."""
    if len(values) and max(-int(values.min()), int(values.max())) > LARGEST_US:
        return None
    return values * 1000


def ns_of_floats(values: npt.NDArray[np.float64]) -> IntArray | None:
    """Nearest nanoseconds of floats that were read from decimal text; None where a float cannot tell them."""
    if len(values) and not np.abs(values).max() < _EXACT_FLOAT_US:  # also when NaN
        return None
    whole = np.floor(values)
    fraction: IntArray = np.rint((values - whole) * 1000.0).astype(np.int64)
    return whole.astype(np.int64) * 1000 + fraction


def ns_of_values(values: Iterable[object]) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """Nanoseconds of each value read as text, 0 where there are none, and where that is."""
    exact = [microseconds_to_ns(value) for value in values]
    missing = np.fromiter((ns is None for ns in exact), dtype=bool, count=len(exact))
    return np.array([ns or 0 for ns in exact], dtype=np.int64), missing
