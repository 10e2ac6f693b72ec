"""One block of events, valid JSON, to packed columns: the fast path, at less than the cost of building dicts.

Records become columns a field at a time; arguments that few events have are packed for those alone. The few events
that need more than the record keeps are picked out of the block's bytes (:mod:`moescope.trace.extras`). Columns are
packed by the standard library, so that a helper process need not load numpy or polars (see
:mod:`moescope.trace.pieces`); :mod:`moescope.trace.columns` unpacks them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import compress
from typing import Any

import msgspec

from moescope.trace import extras
from moescope.trace.decimals import as_int64
from moescope.trace.records import ABSENT, NO_NUMBER, NO_TEXT, Args, Buffer, Records, Scalar, decode_records

_NO_ARGS = Args()

LONGEST_ARGUMENT = 1 << 20
"""Bytes of the shapes, types or values of an operation's inputs, which have thousands at most."""

_MANY_LISTS = 32
"""Lists in an argument from which on it is looked how deep they are nested."""

NOT_DECODED = (msgspec.MsgspecError, RecursionError, UnicodeError)
"""What text that is no list of events as they are decoded here leads to."""

Words = tuple[bytes, list[str | None]]
"""A column of few different texts: for each row a place (uint32) in the list."""


@dataclass(slots=True)
class Packed:
    """Numbers of the rows that ``flags`` (a byte each) marks, all where it is None; :data:`ABSENT` where none."""

    flags: bytes | None
    columns: dict[str, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class Block:
    """What a block of events holds, packed; times in microseconds relative to the file's base."""

    num_recorded: int
    """Elements of the list, of any phase."""
    complete: bytes | None = None
    """A byte for each element, 1 for complete events, which are the rows; None where all are."""
    num_rows: int = 0
    times: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """``ts`` and ``dur``: a :mod:`struct` code and numbers; no code where the texts must be read."""
    ids: dict[str, bytes] = field(default_factory=dict)
    """``pid``, ``tid`` and, where any event has one, ``external_id`` of each row."""
    words: dict[str, Words] = field(default_factory=dict)
    """``recorded`` (the category) and ``name`` of each row."""
    linked: Packed = field(default_factory=lambda: Packed(b""))
    """``device``, ``stream``, ``correlation`` and ``bytes`` of the rows that have any of them."""
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


def decode_block(data: Buffer) -> Block:
    """Decode ``data``, a JSON list of events. Raises :class:`msgspec.DecodeError` where it is not one."""
    records = decode_records(data)
    rows = records.rows
    block = Block(
        records.num_recorded,
        None if records.complete is None else bytes(records.complete),
        len(rows),
        odd_phases=records.odd_phases,
    )
    block.times = {"ts": _pack_times([event.ts for event in rows]), "dur": _pack_times([event.dur for event in rows])}
    block.ids = {
        "pid": _pack_processes([event.pid for event in rows], block.labels),
        "tid": _pack([event.tid for event in rows]),
    }
    block.words = {
        "recorded": _pack_words([event.cat for event in rows]),
        "name": _pack_words([event.name for event in rows]),
    }
    block.num_long_texts = sum(_shorten(words) for _, words in block.words.values())
    if records.has_args:
        _pack_arguments(block, data, records)
    if records.has_spans:
        block.spans = extras.spans(data)
    if "[memory]" in records.names:
        picked = extras.pick(data, b'"[memory]"', extras.is_memory)
        block.memory = [extras.memory_row(event) for event in picked]
    if records.names & extras.PROCESS_NAMES:
        block.labels |= dict(map(extras.label, extras.pick(data, b'"process_', extras.names_process)))
    return block


def are_events(data: bytes) -> bool:
    """Whether ``data`` is one or more events separated by commas, as :func:`decode_block` takes them in a list."""
    try:
        return decode_block(b"[" + data + b"]").num_recorded > 0
    except NOT_DECODED:
        return False


def _pack_arguments(block: Block, data: Buffer, records: Records) -> None:
    args = [event.args or _NO_ARGS for event in records.rows]
    block.linked = _pack_linked(args, block.ids)
    operators = [
        a.input_types is not NO_TEXT
        or a.input_dims is not NO_TEXT
        or a.concrete_inputs is not NO_TEXT
        or a.collective is not NO_TEXT
        for a in args
    ]
    some = list(compress(args, operators))
    if not some:
        return
    block.operators = bytes(operators)
    block.texts = {
        "input_dims": _pack_texts(block, [a.input_dims for a in some]),
        "input_types": _pack_texts(block, [a.input_types for a in some]),
        "concrete_inputs": _pack_texts(block, [a.concrete_inputs for a in some]),
    }
    carriers = [a.collective is not NO_TEXT for a in some]
    if any(carriers):
        places = list(compress(compress(range(len(args)), operators), carriers))
        picked = extras.pick(data, b'"Collective name"', extras.carries_communication, len(places))
        values = map(extras.communication_values, map(extras.arguments, picked))
        block.comm = list(zip(places, values, strict=True))


def _pack_linked(args: list[Args], ids: dict[str, bytes]) -> Packed:
    """What device events and calls have; also packs the external ids, which older ones spell otherwise."""
    flags = [
        a.correlation is not ABSENT or a.device is not ABSENT or a.stream is not ABSENT or a.bytes is not ABSENT
        for a in args
    ]
    some = list(compress(args, flags))
    external = [a.external_id for a in args]
    old = [a.old_external_id for a in some]
    if old.count(ABSENT) < len(old):
        for place, value in zip(compress(range(len(args)), flags), old, strict=True):
            external[place] = value if external[place] is ABSENT else external[place]
    if external.count(ABSENT) < len(external):
        ids["external_id"] = _pack(external)
    if not some:
        return Packed(b"")
    return Packed(
        None if len(some) == len(args) else bytes(flags),
        {
            "device": _pack([a.device for a in some]),
            "stream": _pack([a.stream for a in some]),
            "correlation": _pack([a.correlation for a in some]),
            "bytes": _pack([a.bytes for a in some]),
        },
    )


def _pack(values: Sequence[Scalar]) -> bytes:
    try:
        return struct.pack(f"{len(values)}q", *values)
    except struct.error:  # a text, a fraction, a null or more than 64 bits
        known = {value: _number(value) for value in set(values)}
        return struct.pack(f"{len(values)}q", *(known[value] for value in values))


def _number(value: Scalar) -> int:
    number = as_int64(value)
    return ABSENT if value is None else NO_NUMBER if number is None else number


def _pack_times(values: Sequence[Scalar]) -> tuple[str, bytes]:
    for code in "q" if not values or type(values[0]) is int else "d", "d", "q":
        try:
            return code, struct.pack(f"{len(values)}{code}", *values)
        except struct.error:
            continue
    return "", b""


def _shorten(words: list[str | None]) -> int:
    """Cut the words that are too long, in place; return how many."""
    long = [place for place, word in enumerate(words) if word is not None and len(word) > extras.LONGEST_NAME]
    for place in long:
        words[place] = str(words[place])[: extras.LONGEST_NAME]
    return len(long)


class _Places(dict[Any, int]):
    """The place of each different value in the order of their first look-up."""

    __slots__ = ()

    def __missing__(self, value: Any) -> int:
        place = self[value] = len(self)
        return place


def _pack_words(values: Iterable[Any]) -> Words:
    table = _Places()
    codes = list(map(table.__getitem__, values))
    words = [value if value is None or isinstance(value, str) else str(value) for value in table]
    return struct.pack(f"{len(codes)}I", *codes), words


def _pack_texts(block: Block, values: list[msgspec.Raw]) -> Words:
    table = _Places()
    codes = list(map(table.__getitem__, map(bytes, values)))
    words = [None if len(text) > LONGEST_ARGUMENT else _canonical(text) for text in table]
    block.num_long_texts += sum(len(text) > LONGEST_ARGUMENT for text in table)
    return struct.pack(f"{len(codes)}I", *codes), words


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


def _pack_processes(values: Sequence[Scalar], labels: dict[str, str]) -> bytes:
    """Process ids; one given as a name gets a number of its own, and the name is noted in ``labels``."""
    try:
        return struct.pack(f"{len(values)}q", *values)
    except struct.error:
        known = {value: _process(value, labels) for value in set(values)}
        return struct.pack(f"{len(values)}q", *(known[value] for value in values))


def _process(value: Scalar, labels: dict[str, str]) -> int:
    number = _number(value)
    if number == NO_NUMBER and isinstance(value, str) and value:
        number = extras.process_number(value)
        labels[f"process_name {number}"] = value
    return number
