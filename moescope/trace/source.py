"""The content of a compressed file; what a damaged stream still holds is given."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from isal import isal_zlib
from isal.igzip_lib import IsalError

_GZIP = b"\x1f\x8b"
_READ_BYTES = 1 << 18
_PACKED_CHUNK = 1 << 15
_CHUNK = 1 << 20
"""The content is given in chunks of at most this size, however well it was compressed."""
_ERRORS: tuple[type[Exception], ...] = (IsalError, zlib.error, EOFError)  # type: ignore[assignment]  # isal's stub


def is_gzip(path: Path) -> bool:
    """Whether the file begins as gzip data does."""
    with path.open("rb") as stream:
        return stream.read(2) == _GZIP


class Inflated:
    """A gzip file's content, from start to end; use as a context manager.

    A sound file is inflated straight into the caller's memory. One that is not is read once more, and what it holds
    beyond the bytes that were given already is saved.
    """

    def __init__(self, path: Path):
        self.path = path
        self.fault = ""
        """What is wrong with the stream; known at its end."""
        self.num_bytes = 0
        """How many bytes of content were given."""
        self._stream = path.open("rb", buffering=0)
        # Not part of what isal promises: without it everything is read as of a damaged file, which takes longer.
        reader: Any = getattr(isal_zlib, "_GzipReader", None)
        self._sound = reader and reader(self._stream, _READ_BYTES)
        self._saved = None if reader else self._beyond(0)
        self._left = b""

    def __enter__(self) -> Inflated:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stream.close()

    def readinto(self, room: memoryview) -> int:
        """Put the next bytes of content into ``room``; how many, 0 at the end."""
        count = self._read_sound(room) if self._saved is None else self._read_saved(room)
        self.num_bytes += count
        return count

    def chunks(self) -> Iterator[bytes]:
        """The content from here on."""
        room = memoryview(bytearray(_CHUNK))
        while count := self.readinto(room):
            yield bytes(room[:count])

    def _read_sound(self, room: memoryview) -> int:
        try:
            count: int = self._sound.readinto(room)
            return count
        except Exception as error:  # a header too long for it is an OverflowError
            if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
                raise
            self._saved = self._beyond(self.num_bytes)
            return self._read_saved(room)

    def _read_saved(self, room: memoryview) -> int:
        self._left = self._left or next(self._saved or iter(()), b"")
        count = min(len(room), len(self._left))
        room[:count], self._left = self._left[:count], self._left[count:]
        return count

    def _beyond(self, given: int) -> Iterator[bytes]:
        """The content of a damaged file without the first ``given`` bytes."""
        for chunk in self._inflated():
            if rest := chunk[given:]:
                yield rest
            given = max(0, given - len(chunk))

    def _inflated(self) -> Iterator[bytes]:
        stream = self._stream
        stream.seek(0)
        inflater = isal_zlib.decompressobj(wbits=31)
        position, member, is_between = 0, 0, False
        while packed := stream.read(_PACKED_CHUNK):
            given = 0
            while packed:
                if is_between:
                    packed = packed.lstrip(b"\0")
                    if not packed:
                        break
                    if not packed.startswith(_GZIP[: len(packed)]):
                        self.fault = "followed by bytes that are no gzip data"
                        return
                    member, given, is_between = stream.tell() - len(packed), 0, False
                    inflater = isal_zlib.decompressobj(wbits=31)
                try:
                    chunk = inflater.decompress(packed, _CHUNK)
                except _ERRORS as error:
                    self.fault = f"corrupt ({error})"
                    yield from self._rescued(member, position, given)
                    return
                if chunk:
                    given += len(chunk)
                    yield chunk
                is_between = inflater.eof
                packed = inflater.unused_data if is_between else inflater.unconsumed_tail
            position = stream.tell()
        if not is_between:
            self.fault = "cut short"

    def _rescued(self, member: int, failed: int, given: int) -> Iterator[bytes]:
        """What the chunk at ``failed`` still gives beyond the first ``given`` bytes: its member again, up to the byte
        that cannot be inflated."""
        inflater, stream = zlib.decompressobj(wbits=31), self._stream
        stream.seek(member)
        with suppress(*_ERRORS):  # what isal takes zlib may refuse
            while stream.tell() < failed:
                inflater.decompress(stream.read(min(_PACKED_CHUNK, failed - stream.tell())))
            for byte in stream.read(_PACKED_CHUNK):
                chunk = inflater.decompress(bytes((byte,)))
                if beyond := chunk[given:]:
                    yield beyond
                given = max(0, given - len(chunk))
