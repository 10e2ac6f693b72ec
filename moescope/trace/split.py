"""A stream of bytes -> the head before the list of events, and blocks of whole events."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

BLOCK_BYTES = 4 << 20

EVENT_START = r'\{\s*"(?:ph|name|cat|pid|tid|ts|dur|id|args|bp|s)"\s*:'
_LIST_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE_LIST = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[\s*(?=\{|\]|\Z)")
_LOST_KEY = re.compile(rb"\[\s*(?=" + EVENT_START.encode() + rb")")
_SEPARATOR = re.compile(rb"\}\s*,\s*(?=" + EVENT_START.encode() + rb")")
_SEARCH_AGAIN = 64


@dataclass(slots=True)
class Splitter:
    """Cuts at what separates the file's first two events, whitespace included.

    A cut inside a string or a nested list is possible where a file has the same bytes there; then neither side is
    valid JSON on its own, and :mod:`moescope.trace.scan` joins them again.
    """

    chunks: Iterable[bytes]
    block_bytes: int = BLOCK_BYTES
    head: bytes = b""
    """Everything up to and including the bracket that opens the list; all of a file without one."""
    found: bool = False
    """Whether there is a list of events; known once the first block is asked for."""
    has_key: bool = False
    """Whether the list is the value of ``traceEvents``."""
    key_lost: bool = False
    """Whether the list was found by its first event alone."""
    rest: bytes = b""
    """What follows the last cut: the last event, the end of the list and what comes after."""
    rest_offset: int = 0
    num_bytes: int = 0
    _separator: bytes = field(default=b"", repr=False)

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """(byte offset, events without the list's brackets), in order."""
        stream = self._counted()
        buffer = self._read_head(stream)
        if not self.found:
            return
        offset = len(self.head)
        for chunk in stream:
            buffer += chunk
            if len(buffer) >= self.block_bytes and (cut := self._last_cut(buffer)):
                yield offset, buffer[: cut[0]]
                offset, buffer = offset + cut[1], buffer[cut[1] :]
        if cut := self._last_cut(buffer):
            yield offset, buffer[: cut[0]]
            offset, buffer = offset + cut[1], buffer[cut[1] :]
        self.rest, self.rest_offset = buffer, offset

    def _counted(self) -> Iterator[bytes]:
        for chunk in self.chunks:
            self.num_bytes += len(chunk)
            yield chunk

    def _read_head(self, stream: Iterator[bytes]) -> bytes:
        """Fill ``head``; return what was read beyond it."""
        buffer = bytearray()
        for chunk in stream:
            searched = max(0, len(buffer) - _SEARCH_AGAIN)
            buffer += chunk
            if match := _BARE_LIST.match(buffer):
                return self._split_head(buffer, match.end())
            if match := _LIST_KEY.search(buffer, searched):
                self.has_key = True
                return self._split_head(buffer, match.end())
        match = _LOST_KEY.search(buffer)
        if match is not None and b'"ph"' in buffer:
            self.key_lost = True
            return self._split_head(buffer, match.end())
        self.head = bytes(buffer)
        return b""

    def _split_head(self, buffer: bytearray, end: int) -> bytes:
        self.found, self.head = True, bytes(buffer[:end])
        return bytes(buffer[end:])

    def _last_cut(self, buffer: bytes) -> tuple[int, int] | None:
        """Where the last whole event of ``buffer`` ends and where the next begins."""
        if not self._separator:
            first = _SEPARATOR.search(buffer)
            if first is None:
                return None
            self._separator = first[0] + b"{"
        at = buffer.rfind(self._separator)
        if at >= 0:
            return at + 1, at + len(self._separator) - 1
        last = None
        for last in _SEPARATOR.finditer(buffer):  # noqa: B007
            continue
        return None if last is None else (last.start() + 1, last.end())
