"""One block of events, a JSON list, to packed columns."""

from __future__ import annotations

import msgspec

from moescope.trace import by_records, compiled
from moescope.trace.block import Block
from moescope.trace.records import Buffer

NOT_DECODED = (msgspec.MsgspecError, RecursionError, UnicodeError)
"""What text that is no list of events as they are decoded here leads to."""


def decode_block(data: Buffer) -> Block:
    """Decode ``data``, a JSON list of events. Raises :class:`msgspec.DecodeError` where it is not one.

    Compiled code takes what profilers usually write, if it was built where this is installed; all the rest, and what
    is wrong with it, is for the typed records.
    """
    block = compiled.decode(data)
    if block is not None:
        return block
    return by_records.decode(bytes(data) if isinstance(data, memoryview) else data)


def are_events(data: bytes) -> bool:
    """Whether ``data`` is one or more events separated by commas, as :func:`decode_block` takes them in a list."""
    try:
        return decode_block(b"[" + data + b"]").num_recorded > 0
    except NOT_DECODED:
        return False
