"""A file -> the head before the list of events, and blocks of whole events.

Cuts at what separates the file's first two events, whitespace included. A cut inside a string or a nested list is
possible where a file has the same bytes there; then neither side is valid JSON on its own, and
:mod:`moescope.trace.scan` joins them again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

from moescope.trace.pages import fresh
from moescope.trace.pieces import Piece
from moescope.trace.source import Inflated

BLOCK_BYTES = (2 << 20) - 64
"""Fits a large page of memory with its brackets. Larger ones gain little, and who shares a file waits longer for the
last."""

EVENT_START = r'\{\s*"(?:ph|name|cat|pid|tid|ts|dur|id|args|bp|s)"\s*:'
PHASED_EVENT = r'\{\s*"(?:name"\s*:\s*"[^"]*"\s*,\s*")?ph"\s*:'
"""How events of profilers begin: with the phase, or the name and the phase."""

_LIST_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE_LIST = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[\s*(?=\{|\]|\Z)")
_FIRST_EVENT = re.compile(PHASED_EVENT.encode())
_SEPARATOR = re.compile(rb"\}\s*+,\s*+(?=" + EVENT_START.encode() + rb")")
_OVERLAP = 64
_OPENING, _CLOSING = b"[]"
_WINDOW = 1 << 16

LARGEST_BYTES = 64 << 20
"""Of one event, or of the metadata before or after the list; of a longer one the middle is left out."""
_KEPT = 64
"""Of what is too long this part of the bound is kept at either end: often still valid JSON with a shorter text."""


class Splitter:
    """Splits one file, whose content comes as a stream."""

    def __init__(self, path: Path, block_bytes: int, largest_bytes: int = LARGEST_BYTES):
        self.path = path
        self.block_bytes = block_bytes
        self.largest_bytes = largest_bytes
        self._kept_bytes = largest_bytes // _KEPT
        self.head = b""
        """Everything up to and including the bracket that opens the list; all of a file without one."""
        self.list_offset = 0
        """Where in the content the list's first element begins."""
        self.oversized: list[int] = []
        """Where what was too long begins."""
        self.found = False
        """Whether there is a list of events; known once the first piece is asked for."""
        self.has_key = False
        """Whether the list is the value of ``traceEvents``."""
        self.key_lost = False
        """Whether the list was found by its first event alone."""
        self.rest = b""
        """What follows the last cut: the last event, the end of the list and what comes after."""
        self.rest_offset = 0
        self.num_bytes = 0
        """Size of the content; known once the pieces are used up."""
        self.fault = ""
        """What is wrong with the compressed stream."""
        self._separator = b""
        self._spare: list[memoryview] = []

    def pieces(self) -> Iterator[Piece]:
        """Stretches of whole events, in order."""
        with Inflated(self.path) as source:
            rest = self._read_head(source.chunks())
            if self.found:
                yield from self._cut_stream(source, rest)
            self.fault, self.num_bytes = source.fault, source.num_bytes

    def _cut_stream(self, source: Inflated, rest: bytes) -> Iterator[Piece]:
        offset, enough, is_more = self.list_offset, self.block_bytes, True
        while is_more:
            text, is_more = self._filled(source, rest, enough)
            if not is_more:
                rest = bytes(text[1:])
            elif taken := self._whole_events(offset, text):
                piece, offset, rest = taken
                enough = self.block_bytes
                yield piece
            elif len(text) > self.largest_bytes:
                ends, after, rest = self._shortened(offset, bytes(text[1:]), source.chunks())
                yield from self._before(offset, ends, after)
                offset, rest = (offset, ends) if after is None else (after, rest)
                enough = self.block_bytes
            else:
                rest, enough = bytes(text[1:]), 2 * len(text)  # not to look through the same bytes over and over
        yield from self._finish(offset, rest)

    def _filled(self, source: Inflated, rest: bytes, size: int) -> tuple[memoryview, bool]:
        """A bracket, ``rest`` and what follows it, ``size`` bytes unless the content ends before, and whether it may go
        on; in memory that is used over and over (:meth:`reuse`)."""
        needed = max(size, len(rest)) + 1
        place = next((place for place, room in enumerate(self._spare) if len(room) >= needed), None)
        room = fresh(needed) if place is None else self._spare.pop(place)
        room[0], end = _OPENING, len(rest) + 1
        room[1:end] = rest
        while end < needed:
            count = source.readinto(room[end:needed])
            if not count:
                return room[:end], False
            end += count
        return room[:end], True

    def reuse(self, piece: Piece) -> None:
        """Take back the memory of ``piece``, which nobody needs any more."""
        if isinstance(piece.text, memoryview):
            self._spare.append(memoryview(piece.text.obj))

    def _whole_events(self, offset: int, text: memoryview) -> tuple[Piece, int, bytes] | None:
        """The events that ``text`` holds whole, which is a bracket and the content from ``offset`` on; where the next
        one begins, and what is there of it. None where no event ends. ``text`` becomes the piece's: copies cost as
        much as inflating."""
        cut = self._last_cut(text)
        if cut is None:
            return None
        rest = bytes(text[cut[1] :])
        text[cut[0]] = _CLOSING
        return Piece(offset, cut[0] - 1, text[: cut[0] + 1]), offset + cut[1] - 1, rest

    def _before(self, offset: int, ends: bytes, after: int | None) -> Iterator[Piece]:
        """The two ends of an event that was too long, where another one follows."""
        if after is not None:
            yield Piece(offset, len(ends), b"[%b]" % ends)

    def _shortened(self, offset: int, buffer: bytes, stream: Iterator[bytes]) -> tuple[bytes, int | None, bytes]:
        """Of what begins at ``offset`` with ``buffer`` and is too long: its two ends, where the next event begins, and
        what was read of that; None and nothing where ``stream`` ends before one begins."""
        self.oversized.append(offset)
        kept, read_to = self._kept_bytes, offset + len(buffer)
        first, last = buffer[:kept], buffer[kept:][-kept:]
        for chunk in stream:
            searched = max(0, len(last) - _OVERLAP)
            last, read_to = last + chunk, read_to + len(chunk)
            if match := _SEPARATOR.search(last, searched):
                rest = last[match.end() :]
                return first + last[: match.start() + 1][-kept:], read_to - len(rest), rest
            last = last[-kept:]
        return first + last, None, b""

    def _finish(self, offset: int, buffer: bytes) -> Iterator[Piece]:
        """The last whole events, then what remains as ``rest``."""
        if taken := self._whole_events(offset, memoryview(bytearray(b"[" + buffer))):
            piece, offset, buffer = taken
            yield piece
        self.rest, self.rest_offset = buffer, offset

    def without_middle(self, data: bytes, offset: int) -> bytes:
        """``data``, which begins at ``offset`` of the content; where it is too long, its two ends."""
        if len(data) <= self.largest_bytes:
            return data
        self.oversized.append(offset)
        return data[: self._kept_bytes] + data[-self._kept_bytes :]

    def _read_head(self, stream: Iterator[bytes]) -> bytes:
        """Fill ``head``; return what was read beyond it."""
        buffer = bytearray()
        left_out = 0
        for chunk in stream:
            searched = max(0, len(buffer) - _OVERLAP)
            buffer += chunk
            if not left_out and (match := _BARE_LIST.match(buffer)):
                return self._split_head(buffer, match.end(), 0)
            if match := _LIST_KEY.search(buffer, searched):
                self.has_key = True
                return self._split_head(buffer, match.end(), left_out)
            if len(buffer) > self.largest_bytes:
                if match := _FIRST_EVENT.search(buffer):
                    break
                left_out += len(buffer) - 2 * self._kept_bytes
                self.oversized = [0]
                del buffer[self._kept_bytes : -self._kept_bytes]
        if match := _FIRST_EVENT.search(buffer):
            self.key_lost = True
            return self._split_head(buffer, match.start(), left_out)
        self.head = bytes(buffer)
        return b""

    def _split_head(self, buffer: bytearray, end: int, left_out: int) -> bytes:
        self.found, self.head, self.list_offset = True, bytes(buffer[:end]), left_out + end
        return bytes(buffer[end:])

    def _last_cut(self, buffer: bytes | memoryview) -> tuple[int, int] | None:
        """Where the last whole event of ``buffer`` ends and where the next begins."""
        if not self._separator:
            first = _SEPARATOR.search(buffer)
            if first is None:
                return None
            self._separator = first[0] + b"{"
        whole: Any = buffer.obj if isinstance(buffer, memoryview) else buffer  # views cannot be searched backwards
        at = whole.rfind(self._separator, 0, len(buffer))
        if at >= 0:
            return at + 1, at + len(self._separator) - 1
        last = None
        for last in _SEPARATOR.finditer(buffer):  # noqa: B007
            continue
        return None if last is None else (last.start() + 1, last.end())


class FileSplitter(Splitter):
    """Splits one file that is not compressed: looks at the cuts only, and leaves the reading to who takes a piece."""

    def pieces(self) -> Iterator[Piece]:
        """Stretches of whole events, in order."""
        self.num_bytes = self.path.stat().st_size
        with self.path.open("rb", buffering=0) as stream:
            self._read_head(_chunks(stream, min(_WINDOW, self.block_bytes)))
            if not self.found:
                return
            offset, end = self.list_offset, self.block_bytes
            while offset + end < self.num_bytes:
                cut = self._cut_before(stream, offset, end)
                if cut is not None:
                    yield Piece(offset, cut[0], path=str(self.path))
                    offset, end = offset + cut[1], self.block_bytes
                elif end <= self.largest_bytes:
                    end *= 2
                else:
                    stream.seek(offset)
                    blocks = _chunks(stream, self.block_bytes)
                    ends, after, _ = self._shortened(offset, next(blocks), blocks)
                    yield from self._before(offset, ends, after)
                    if after is None:
                        yield from self._finish(offset, ends)
                        return
                    offset, end = after, self.block_bytes
            if cut := self._cut_before(stream, offset, max(0, self.num_bytes - offset)):
                yield Piece(offset, cut[0], path=str(self.path))
                offset += cut[1]
            stream.seek(offset)
            self.rest, self.rest_offset = stream.read(), offset

    def _cut_before(self, stream: FileIO, offset: int, end: int) -> tuple[int, int] | None:
        """The last cut within ``end`` bytes from ``offset``, relative to it; looks at the end first."""
        if not self._separator:
            stream.seek(offset)
            self._last_cut(stream.read(min(end, _WINDOW)))
        for start in (max(0, end - _WINDOW) if self._separator else 0, 0):
            stream.seek(offset + start)
            if cut := self._last_cut(stream.read(end - start)):
                return start + cut[0], start + cut[1]
        return None


def _chunks(stream: FileIO, size: int) -> Iterator[bytes]:
    return iter(lambda: stream.read(size), b"")
