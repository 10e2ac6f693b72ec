"""One block of events to packed columns by msgspec's typed records: at less than the cost of building dicts.

Records become columns a field at a time; arguments that few events have are packed for those alone. Where some
events need more than the record keeps, the block is decoded again, to dicts (:mod:`moescope.trace.extras`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import Any

import msgspec

from moescope.trace import extras
from moescope.trace.block import Block, Packed, Times, Words, number_of
from moescope.trace.decimals import LARGEST_US, microseconds_to_ns
from moescope.trace.records import (
    ABSENT,
    NO_TEXT,
    Args,
    Complete,
    Records,
    Scalar,
    Text,
    decode_records,
    decode_time_texts,
)

_NO_ARGS = Args()
_EXACT_FLOAT_US = 2.0**43
"""A float64 below it is off by less than half a nanosecond."""


def decode(data: Text) -> Block:
    """Decode ``data``, a JSON list of events. Raises :class:`msgspec.DecodeError` where it is not one."""
    records = decode_records(data)
    rows = records.rows
    block = Block(
        records.num_recorded,
        None if records.complete is None else bytes(records.complete),
        len(rows),
        odd_phases=records.odd_phases,
    )
    block.times = _pack_times(rows, data)
    block.ids = {
        "pid": _pack([event.pid for event in rows], block.process_of),
        "tid": _pack([event.tid for event in rows]),
    }
    block.words = {
        "recorded": _pack_words(block, [event.cat for event in rows]),
        "name": _pack_words(block, [event.name for event in rows]),
    }
    if records.has_args:
        _pack_arguments(block, data, records)
    if records.has_spans:
        block.spans = extras.spans(data)
    if "[memory]" in records.names:
        block.memory = [extras.memory_row(event) for event in extras.pick(data, extras.is_memory)]
    if records.names & extras.PROCESS_NAMES:
        block.labels |= dict(map(extras.label, extras.pick(data, extras.names_process)))
    return block


def _pack_arguments(block: Block, data: Text, records: Records) -> None:
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
        picked = extras.pick(data, extras.carries_communication)
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


def _pack(values: Sequence[Scalar], number: Callable[[Scalar], int] = number_of) -> bytes:
    try:
        return struct.pack(f"{len(values)}q", *values)
    except struct.error:  # a text, a fraction, a null or more than 64 bits
        known = {value: number(value) for value in set(values)}
        return struct.pack(f"{len(values)}q", *(known[value] for value in values))


def _pack_times(rows: Sequence[Complete], data: Text) -> dict[str, Times]:
    """Numbers are used only where they are known to give the text's nanosecond: integers, and floats below 2**43;
    else the texts are read."""
    start, duration = _as_numbers([event.ts for event in rows]), _as_numbers([event.dur for event in rows])
    if start is not None and duration is not None:
        return {"ts": start, "dur": duration}
    texts = decode_time_texts(data)
    return {"ts": _as_texts([ts for ts, _ in texts]), "dur": _as_texts([dur for _, dur in texts])}


def _as_numbers(values: Sequence[Any]) -> Times | None:
    for unit, code, limit in (("us", "q", LARGEST_US), ("us-float", "d", _EXACT_FLOAT_US)):
        try:
            packed = struct.pack(f"{len(values)}{code}", *values)
        except struct.error:
            continue
        if not values or (-limit < min(values) and max(values) < limit):
            return Times(unit, packed)
    return None


def _as_texts(texts: Sequence[str]) -> Times:
    exact = list(map(microseconds_to_ns, texts))
    absent = [row for row, ns in enumerate(exact) if ns is None]
    return Times("ns", struct.pack(f"{len(exact)}q", *(ns or 0 for ns in exact)), absent)


class _Places(dict[Any, int]):
    """The place of each different value in the order of their first look-up."""

    __slots__ = ()

    def __missing__(self, value: Any) -> int:
        place = self[value] = len(self)
        return place


def _pack_words(block: Block, values: Iterable[Any]) -> Words:
    table = _Places()
    codes = list(map(table.__getitem__, values))
    words = [value if value is None or isinstance(value, str) else str(value) for value in table]
    return struct.pack(f"{len(codes)}I", *codes), block.shortened(words)


def _pack_texts(block: Block, values: list[msgspec.Raw]) -> Words:
    table = _Places()
    codes = list(map(table.__getitem__, map(bytes, values)))
    return struct.pack(f"{len(codes)}I", *codes), block.argument_texts(list(table))
