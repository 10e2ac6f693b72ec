"""The content of a compressed file in large chunks; what a damaged stream still holds is given."""

from __future__ import annotations

import queue
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from isal import isal_zlib
from isal.igzip_lib import IsalError

_GZIP = b"\x1f\x8b"
_PACKED_CHUNK = 1 << 15
"""What comes of so little is put into memory that is used over and over; for what comes of four times as much, the C
library takes fresh memory each time, which costs as much as inflating."""
_CHUNK = 4 << 20
"""The content is given in chunks of at most this size, however well it was compressed."""
_AHEAD = 16
_ERRORS: tuple[type[Exception], ...] = (IsalError, zlib.error, EOFError)  # type: ignore[assignment]  # isal's stub


def is_gzip(path: Path) -> bool:
    """Whether the file begins as gzip data does."""
    with path.open("rb") as stream:
        return stream.read(2) == _GZIP


@dataclass(slots=True)
class Inflated:
    """A gzip file's content. ``fault`` is set, once the chunks are used up, where the stream is damaged."""

    path: Path
    fault: str = ""

    def chunks(self) -> Iterator[bytes]:
        """The content from start to end, inflated in a thread ahead of the caller."""
        yield from _ahead(self._inflated())

    def _inflated(self) -> Iterator[bytes]:
        with self.path.open("rb") as stream:
            inflater = isal_zlib.decompressobj(wbits=31)
            position, member = 0, 0
            while packed := stream.read(_PACKED_CHUNK):
                given = 0
                while packed:
                    try:
                        chunk = inflater.decompress(packed, _CHUNK)
                    except _ERRORS as error:
                        self.fault = f"corrupt ({error})"
                        yield from self._rescued(member, position, given)
                        return
                    if chunk:
                        given += len(chunk)
                        yield chunk
                    if not inflater.eof:
                        packed = inflater.unconsumed_tail
                        continue
                    given = 0
                    packed = inflater.unused_data.lstrip(b"\0")
                    if packed and not packed.startswith(_GZIP[: len(packed)]):
                        self.fault = "followed by bytes that are no gzip data"
                        return
                    member = stream.tell() - len(packed)
                    inflater = isal_zlib.decompressobj(wbits=31)
                position = stream.tell()
            if stream.tell() > member and not inflater.eof:
                self.fault = "cut short"

    def _rescued(self, member: int, failed: int, given: int) -> Iterator[bytes]:
        """What the chunk at ``failed`` still gives beyond the first ``given`` bytes: its member again, up to the byte
        that cannot be inflated."""
        inflater = zlib.decompressobj(wbits=31)
        with self.path.open("rb") as stream:
            stream.seek(member)
            while stream.tell() < failed:
                inflater.decompress(stream.read(min(_PACKED_CHUNK, failed - stream.tell())))
            for byte in stream.read(_PACKED_CHUNK):
                try:
                    chunk = inflater.decompress(bytes((byte,)))
                except _ERRORS:
                    return
                if beyond := chunk[given:]:
                    yield beyond
                given = max(0, given - len(chunk))


def _ahead(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """``chunks``, produced in a thread while the caller works on the previous ones."""
    ready: queue.Queue[bytes | BaseException | None] = queue.Queue(_AHEAD)
    stop = threading.Event()

    def produce() -> None:
        outcome: BaseException | None = None
        try:
            for chunk in chunks:
                if not _offer(ready, chunk, stop):
                    return
        except BaseException as error:  # raised again in the consumer
            outcome = error
        _offer(ready, outcome, stop)

    thread = threading.Thread(target=produce, name="inflate", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        thread.join()


def _offer(
    ready: queue.Queue[bytes | BaseException | None], item: bytes | BaseException | None, stop: threading.Event
) -> bool:
    while not stop.is_set():
        try:
            ready.put(item, timeout=0.1)
        except queue.Full:
            continue
        return True
    return False
