"""Stretches of an event list, and the task that helpers do with them.

Imports no numpy and no polars, and neither does what it imports: a helper decodes its first stretch in a tenth of a
second, not in half a one.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from io import FileIO

from moescope.trace.block import Block
from moescope.trace.decode import NOT_DECODED, decode_block
from moescope.trace.pages import fresh
from moescope.trace.records import Buffer

_KEPT_BYTES = 8 << 20
"""Larger ones are given back: few blocks are, and a thread may live long."""
_BRACKETS = b"[]"
_LOCAL = threading.local()


def _scratch(size: int) -> memoryview:
    """``size`` bytes of memory that is used over and over: fresh memory costs more than filling it."""
    text: memoryview | None = getattr(_LOCAL, "text", None)
    if text is None or len(text) < size:
        text = fresh(size)
        if size <= _KEPT_BYTES:
            _LOCAL.text = text
    return text[:size]


def _fill(room: memoryview, stream: FileIO) -> bool:
    """Read ``stream`` until ``room`` is full; False where the file, which somebody may have cut, ends first."""
    filled = 0
    while filled < len(room) and (count := stream.readinto(room[filled:])):
        filled += count
    return filled == len(room)


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of the event list: bytes in hand, or where to read them."""

    offset: int
    length: int
    text: Buffer | None = None
    """The bytes between brackets; a view of memory that is used again for others when this piece is done."""
    path: str | None = None

    def __reduce__(self) -> tuple[type[Piece], tuple[object, ...]]:
        """To a helper process goes a copy: views do not travel."""
        return Piece, (self.offset, self.length, None if self.text is None else bytes(self.text), self.path)

    def as_list(self) -> Buffer:
        """The bytes between brackets, a JSON list; valid until the next call in this thread.

        Raises :class:`EOFError` where the file has become shorter.
        """
        if self.text is not None:
            return self.text
        text = _scratch(self.length + 2)
        with open(self._path(), "rb", buffering=0) as stream:
            stream.seek(self.offset)
            if not _fill(text[1:-1], stream):
                raise EOFError(self.path)
        text[0], text[-1] = _BRACKETS
        return text

    def read(self) -> bytes:
        """The bytes."""
        if self.text is not None:
            return bytes(self.text[1:-1])
        with open(self._path(), "rb", buffering=0) as stream:
            stream.seek(self.offset)
            return stream.read(self.length)

    def _path(self) -> str:
        if self.path is None:
            raise ValueError("a piece needs its text or a path")
        return self.path


def try_piece(piece: Piece) -> Block | None:
    """What a stretch of events holds; None when it is not valid JSON or no longer there."""
    try:
        return decode_block(piece.as_list())
    except (*NOT_DECODED, EOFError):
        return None
