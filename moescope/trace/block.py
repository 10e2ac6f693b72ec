"""What one block of events is decoded into, packed columns, and what both ways of decoding share.

Columns are packed by the standard library, so that a helper process need not load numpy or polars (see
:mod:`moescope.trace.pieces`); :mod:`moescope.trace.columns` unpacks them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec

from moescope.trace import extras
from moescope.trace.decimals import as_int64
from moescope.trace.records import ABSENT, NO_NUMBER, Scalar

LONGEST_ARGUMENT = 1 << 20
"""Bytes of the shapes, types or values of an operation's inputs, which have thousands at most."""

_MANY_LISTS = 32
"""Lists in an argument from which on it is looked how deep they are nested."""

Words = tuple[bytes, list[str | None]]
"""A column of few different texts: for each row a place (uint32) in the list."""


@dataclass(frozen=True, slots=True)
class Times:
    """Starts or durations of a block's rows."""

    unit: str
    """What the numbers are: ``us`` (int64), ``us-float`` (float64, exact to the nanosecond) or ``ns`` (int64)."""
    packed: bytes
    absent: list[int] = field(default_factory=list)
    """The rows that have none, or none that is a time; 0 stands in their place."""


@dataclass(slots=True)
class Packed:
    """Numbers of the rows that ``flags`` (a byte each) marks, all where it is None; :data:`ABSENT` where none."""

    flags: bytes | None
    columns: dict[str, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class Block:
    """What a block of events holds, packed; times relative to the file's base."""

    num_recorded: int
    """Elements of the list, of any phase."""
    complete: bytes | None = None
    """A byte for each element, 1 for complete events, which are the rows; None where all are."""
    num_rows: int = 0
    times: dict[str, Times] = field(default_factory=dict)
    """``ts`` and ``dur``."""
    ids: dict[str, bytes] = field(default_factory=dict)
    """``pid``, ``tid`` and, where any event has them, ``external_id`` and those of ``linked``, of each row."""
    words: dict[str, Words] = field(default_factory=dict)
    """``recorded`` (the category) and ``name`` of each row."""
    linked: Packed = field(default_factory=lambda: Packed(b""))
    """``device``, ``stream``, ``correlation`` and ``bytes``, packed for the rows alone that have any of them."""
    operators: bytes = b""
    """A byte for each row, 1 where it has one of ``texts``; empty where none has."""
    texts: dict[str, Words] = field(default_factory=dict)
    """``input_dims``, ``input_types`` and ``concrete_inputs`` of the rows marked in ``operators``, as JSON texts."""
    comm: list[tuple[int, tuple[Any, ...]]] = field(default_factory=list)
    """(row, communication arguments)."""
    memory: list[tuple[Any, ...]] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    spans: list[tuple[int, extras.Event]] = field(default_factory=list)
    """(place among the elements, event) of what begins or ends a range."""
    odd_phases: tuple[int, int] = (0, 0)
    """How many elements have no phase that the format knows, and the first one's place."""
    num_long_texts: int = 0
    """Different names and arguments that were too long."""

    def argument_texts(self, texts: list[bytes]) -> list[str | None]:
        """The JSON texts as they are kept; counts those that are too long, which are not."""
        if sum(map(len, texts)) <= LONGEST_ARGUMENT:
            return list(map(_canonical, texts))
        self.num_long_texts += sum(len(text) > LONGEST_ARGUMENT for text in texts)
        return [None if len(text) > LONGEST_ARGUMENT else _canonical(text) for text in texts]

    def shortened(self, words: list[str | None]) -> list[str | None]:
        """``words``, those that are too long cut and counted."""
        if all(word is None or len(word) <= extras.LONGEST_NAME for word in words):
            return words
        self.num_long_texts += len({word for word in words if word is not None and len(word) > extras.LONGEST_NAME})
        return [word if word is None else word[: extras.LONGEST_NAME] for word in words]

    def process_of(self, value: Scalar) -> int:
        """The process id; one given as a name gets a number of its own, and the name is noted in ``labels``."""
        number = number_of(value)
        if number == NO_NUMBER and isinstance(value, str) and value:
            number = extras.process_number(value)
            self.labels[f"process_name {number}"] = value
        return number


def number_of(value: Scalar) -> int:
    """The integer, :data:`ABSENT` for None and :data:`NO_NUMBER` for what is none."""
    number = as_int64(value)
    return ABSENT if value is None else NO_NUMBER if number is None else number


@lru_cache(maxsize=1 << 14)
def _canonical(text: bytes) -> str | None:
    """The JSON text spaced as :func:`json.dumps` does; of a string what it holds; None of no text."""
    if not text:
        return None
    value = msgspec.json.decode(text)
    if text.count(b"[") > _MANY_LISTS and _is_too_deep(value):
        return None
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _is_too_deep(value: Any) -> bool:
    """Whether ``value`` is nested too deep for whoever reads it again."""
    from moescope.intake import Oddities, plain  # noqa: PLC0415 - a helper starts sooner without it

    try:
        plain(value, Oddities())
    except ValueError:
        return True
    return False
