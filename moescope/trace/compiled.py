"""One block of events to packed columns by compiled code (``_block.c``), many times faster than by typed records.

It is built with the package where there is a C compiler; without it, and for whatever it does not take, there is
:mod:`moescope.trace.by_records`, which gives the same.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import msgspec

from moescope.trace import extras
from moescope.trace.block import Block, Times, Words, number_of
from moescope.trace.decimals import microseconds_to_ns
from moescope.trace.records import Buffer, Scalar

try:
    from moescope.trace import _block
except ImportError:  # there was no compiler
    _block = None  # type: ignore[assignment]

_TIMES = ("ts", "dur")
_NUMBERS = (*_TIMES, "pid", "tid", "external_id", "device", "stream", "correlation", "bytes")
_NO_WORD = 2**32 - 1
_SCALAR: msgspec.json.Decoder[Scalar] = msgspec.json.Decoder(Scalar)
_NUMBER_BYTES = 8

Stretch = tuple[int, int, int]
"""Place of a row or an element, and where its text begins and ends."""


def is_available() -> bool:
    """Whether the compiled code was built."""
    return _block is not None


def decode(data: Buffer) -> Block | None:
    """The columns of the JSON list ``data``; None where it is not as profilers usually write it."""
    found = None if _block is None else _block.columns(data)
    if found is None:
        return None
    num_recorded, num_rows, is_ascii, complete, numbers, texts, operators, words, stretches = found
    block = Block(num_recorded, complete or None, num_rows)
    try:
        if not is_ascii:
            data.decode("utf-8")
        columns = dict(zip(_NUMBERS, numbers, strict=True))
        absent = _read_texts(block, data, columns, texts)
        category, name, *arguments = [(codes, _slices(data, places)) for codes, places in words]
        block.words = {"recorded": _words(block, category), "name": _words(block, name)}
        if operators:
            block.operators = operators
            block.texts = {
                column: (codes, block.argument_texts([text or b"" for text in found]))
                for column, (codes, found) in zip(
                    ("input_dims", "input_types", "concrete_inputs"), arguments, strict=True
                )
            }
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
    for column, row, start, end in struct.iter_unpack("4I", texts):
        name, text = _NUMBERS[column], bytes(data[start:end])
        if name in _TIMES:
            ns = microseconds_to_ns(text.decode().strip('"'))
            if ns is None:
                absent[name].append(row)
            number = ns or 0
        else:
            value = _SCALAR.decode(text)
            number = block.process_of(value) if name == "pid" else number_of(value)
        if name not in changed:
            changed[name] = bytearray(columns[name] or b"")
        struct.pack_into("q", changed[name], row * _NUMBER_BYTES, number)
    columns.update({name: bytes(packed) for name, packed in changed.items()})
    return absent


def _slices(data: Buffer, places: bytes) -> list[bytes | None]:
    """The stretches of ``data`` that ``places`` (pairs of uint32) tell, None where there is none."""
    return [None if start == _NO_WORD else bytes(data[start:end]) for start, end in struct.iter_unpack("2I", places)]


def _words(block: Block, column: tuple[bytes, Sequence[bytes | None]]) -> Words:
    codes, texts = column
    return codes, block.shortened([text if text is None else _string(text) for text in texts])


def _string(inside: bytes) -> str:
    """What a JSON string means of which this is ``inside`` the quotes."""
    return msgspec.json.decode(b'"%b"' % inside, type=str) if b"\\" in inside else inside.decode()


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
