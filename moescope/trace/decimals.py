"""Numbers of a trace, one at a time: exact nanoseconds from microseconds, and integers however they are written."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation

INT64_MAX = 2**63 - 1
LONGEST_NS = 10**16
"""Longest believable duration, about 116 days: a longer one is an overflow."""

LARGEST_US = 4 * 10**15
"""Year 2096: the sum of a base time and a time within these bounds fits 64 bits in nanoseconds."""

_NANOSECOND = Decimal("0.001")
_INTEGER = re.compile(r"\s*([+-]?\d{1,40})\s*\Z")


def microseconds_to_ns(value: object) -> int | None:
    """Nanoseconds of ``value`` microseconds (a number or its text), half up; None where that is no time."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value * 1000 if abs(value) <= LARGEST_US else None
    number = _decimal(value)
    if number is None or number.adjusted() > 15:
        return None
    ns = int(number.quantize(_NANOSECOND, ROUND_HALF_UP).scaleb(3))
    return ns if abs(ns) <= LARGEST_US * 1000 else None


def as_base_ns(value: object) -> int | None:
    """The time that a trace's microseconds count from; None where ``value`` is no time."""
    number = as_int(value)
    return number if number is not None and abs(number) <= LARGEST_US * 1000 else None


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
