"""Exact nanoseconds from microseconds written as decimal text.

Decoded numbers are used only where they are known to give the text's nanosecond: integers, and floats below 2**43
(a float64 there is off by less than half a nanosecond); larger fractions are read from the text itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation

import numpy as np
import numpy.typing as npt

INT64_MAX = 2**63 - 1
LONGEST_NS = 10**16
"""Longest believable duration, about 116 days: a longer one is an overflow."""

_LARGEST_US = 4 * 10**15
"""Year 2096: the sum of a base time and a time within these bounds fits 64 bits in nanoseconds."""

_EXACT_FLOAT_US = 2.0**43
_INTEGER = re.compile(r"\s*([+-]?\d{1,40})\s*\Z")


def microseconds_to_ns(value: object) -> int | None:
    """Nanoseconds of ``value`` microseconds (a number or its text), half up; None where that is no time."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value * 1000 if abs(value) <= _LARGEST_US else None
    number = _decimal(value)
    if number is None or number.adjusted() > 15:
        return None
    ns = int((number * 1000).to_integral_value(ROUND_HALF_UP))
    return ns if abs(ns) <= _LARGEST_US * 1000 else None


def ns_of_integers(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
    """Nanoseconds of whole microseconds; None where one is no time."""
    if len(values) and max(-int(values.min()), int(values.max())) > _LARGEST_US:
        return None
    return values * 1000


def ns_of_floats(values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64] | None:
    """Nearest nanoseconds of floats that were read from decimal text; None where a float cannot tell them."""
    if not np.abs(values).max() < _EXACT_FLOAT_US:  # also when NaN
        return None
    whole = np.floor(values)
    fraction: npt.NDArray[np.int64] = np.rint((values - whole) * 1000.0).astype(np.int64)
    return whole.astype(np.int64) * 1000 + fraction


def ns_of_values(values: Iterable[object]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Nanoseconds of each value read as text, 0 where there are none, and where that is."""
    exact = [microseconds_to_ns(value) for value in values]
    missing = np.fromiter((ns is None for ns in exact), dtype=bool, count=len(exact))
    return np.array([ns or 0 for ns in exact], dtype=np.int64), missing


def as_base_ns(value: object) -> int | None:
    """The time that a trace's microseconds count from; None where ``value`` is no time."""
    number = as_int(value)
    return number if number is not None and abs(number) <= _LARGEST_US * 1000 else None


def as_int(value: object) -> int | None:
    """An integer given as a number, or as text such as ``12``, ``12.0`` or ``stream 12``; else None."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        value = value.removeprefix("stream ").removeprefix("Stream ")
        if match := _INTEGER.match(value):
            return int(match[1])
    number = _decimal(value)
    return int(number) if number is not None and number.adjusted() < 25 and number == int(number) else None


def as_int64(value: object) -> int | None:
    """:func:`as_int` as a signed 64-bit integer; an unsigned one keeps its bits, a longer one is None."""
    number = as_int(value)
    if number is None or not -(2**63) <= number < 2**64:
        return None
    return number - 2**64 if number > INT64_MAX else number


def _decimal(value: object) -> Decimal | None:
    if not isinstance(value, str | float):
        return None
    try:
        number = Decimal(str(value).strip())
    except InvalidOperation:
        return None
    return number if number.is_finite() else None
