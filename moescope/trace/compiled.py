"""One block of events to packed columns by compiled code (``_block.c``), many times faster than by typed records.

It is built with the package where there is a C compiler; without it, and for whatever it does not take, there is
:mod:`moescope.trace.by_records`, which gives the same.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from moescope.trace import extras
from moescope.trace.block import Block, Times, number_of
from moescope.trace.decimals import microseconds_to_ns
from moescope.trace.records import Buffer, Scalar

try:
    from moescope.trace import _block
except ImportError:  # there was no compiler
    _block = None  # type: ignore[assignment]

_TIMES = ("ts", "dur")
_NUMBERS = (*_TIMES, "pid", "tid", "external_id", "device", "stream", "correlation", "bytes")
_SCALAR: msgspec.json.Decoder[Scalar] = msgspec.json.Decoder(Scalar)
_STRING: msgspec.json.Decoder[str] = msgspec.json.Decoder(str)
_NUMBER_BYTES = 8

Column = tuple[bytes, list[Any], int, bool]
"""Codes, the different texts, the bytes of the longest, and whether all are strings: others are None, or bytes."""

Stretch = tuple[int, int, int]
"""Place of a row or an element, and where its text begins and ends."""


def is_available() -> bool:
    """Whether the compiled code was built."""
    return _block is not None


def decode(data: Buffer) -> Block | None:
    """The columns of the JSON list ``data``; None where it is not as profilers usually write it."""
    if _block is None:
        return None
    try:
        found = _block.columns(data)
        if found is None:
            return None
        num_recorded, num_rows, is_ascii, complete, numbers, texts, operators, words, stretches = found
        block = Block(num_recorded, complete or None, num_rows)
        if not is_ascii:
            str(data, "utf-8")
        columns = dict(zip(_NUMBERS, numbers, strict=True))
        absent = _read_texts(block, data, columns, texts)
        _read_words(block, operators, words)
        _read_stretches(block, data, stretches)
    except (UnicodeError, msgspec.MsgspecError):  # what this is, the other way finds out
        return None
    block.times = {name: Times("ns", columns.pop(name) or b"", absent[name]) for name in _TIMES}
    block.ids = {name: packed for name, packed in columns.items() if packed is not None}
    return block


def _read_texts(block: Block, data: Buffer, columns: dict[str, bytes | None], texts: bytes) -> dict[str, list[int]]:
    """Put the numbers that are written in another way into ``columns``; the rows without a start or a duration."""
    absent: dict[str, list[int]] = {name: [] for name in _TIMES}
    changed: dict[str, bytearray] = {}
    known: dict[tuple[str, bytes], int | None] = {}
    for column, row, start, end in struct.iter_unpack("4I", texts):
        name, text = _NUMBERS[column], bytes(data[start:end])
        if (name, text) not in known:
            known[name, text] = _number(block, name, text)
        number = known[name, text]
        if number is None:
            absent[name].append(row)
        if name not in changed:
            changed[name] = bytearray(columns[name] or b"")
        struct.pack_into("q", changed[name], row * _NUMBER_BYTES, number or 0)
    columns.update({name: bytes(packed) for name, packed in changed.items()})
    return absent


def _number(block: Block, name: str, text: bytes) -> int | None:
    """What ``text``, which is JSON or empty, is in the column ``name``; None of what is no time."""
    value = _SCALAR.decode(text) if text else None
    if name in _TIMES:
        return microseconds_to_ns(text.decode().strip('"'))
    return block.process_of(value) if name == "pid" else number_of(value)


def _read_words(block: Block, operators: bytes, columns: Sequence[Column]) -> None:
    for name, (codes, words, longest, are_strings) in zip(("recorded", "name"), columns[:2], strict=True):
        # Bytes are the inside of a JSON string, with escapes.
        texts = words if are_strings else [_STRING.decode(b'"%b"' % w) if isinstance(w, bytes) else w for w in words]
        block.words[name] = codes, texts if longest <= extras.LONGEST_NAME else block.shortened(texts)
    if operators:
        block.operators = operators
        for name, (codes, words, *_) in zip(("input_dims", "input_types", "concrete_inputs"), columns[2:], strict=True):
            block.texts[name] = codes, block.argument_texts([b"" if word is None else word for word in words])


def _read_stretches(block: Block, data: Buffer, stretches: Sequence[bytes]) -> None:
    """Take what needs whole events: communication, memory, names of processes, begins and ends of ranges."""
    comm, memory, labels, spans = (list(struct.iter_unpack("3I", packed)) for packed in stretches)
    block.comm = [(row, extras.communication_values(extras.arguments(event))) for row, event in _events(data, comm)]
    block.memory = [extras.memory_row(event) for _, event in _events(data, memory)]
    block.labels |= dict(extras.label(event) for _, event in _events(data, labels))
    block.spans = list(_events(data, spans))


def _events(data: Buffer, places: list[Stretch]) -> Iterator[tuple[int, extras.Event]]:
    events = extras.decode_events(b"[" + b",".join(data[start:end] for _, start, end in places) + b"]")
    yield from zip((row for row, _, _ in places), events, strict=True)
