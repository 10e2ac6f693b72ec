"""Exact nanoseconds from the decimal text of microseconds; no float in between."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation

INT64_MAX = 2**63 - 1
LONGEST_NS = 10**16
"""Longest believable duration, about 116 days: a longer one is an overflow."""

_INTEGER = re.compile(r"\s*([+-]?\d+)\s*\Z")


def microseconds_to_ns(value: object) -> int | None:
    """Nanoseconds of ``value`` microseconds (int, decimal text), half up; None where that is no finite number."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value * 1000
    if not isinstance(value, str):
        return None
    try:
        number = Decimal(value.strip())
    except InvalidOperation:
        return None
    if not number.is_finite() or number.adjusted() > 25:
        return None
    return int((number * 1000).to_integral_value(ROUND_HALF_UP))


def as_int(value: object) -> int | None:
    """An integer given as a number, or as text such as ``12``, ``12.0`` or ``stream 12``; else None."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return value
    if not isinstance(value, str):
        return None
    text = value.removeprefix("stream ")
    if match := _INTEGER.match(text):
        return int(match[1])
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return int(number) if number.is_finite() and number.adjusted() < 25 and number == int(number) else None
