"""One input file -> its raw tables, block by block, alone or with a crew."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from moescope.trace.block import Block
from moescope.trace.columns import RawTables
from moescope.trace.crew import Crew, ahead
from moescope.trace.decode import NOT_DECODED, decode_block
from moescope.trace.faults import Faults
from moescope.trace.interrupts import check
from moescope.trace.mend import LOST, Follows, Mended, mend
from moescope.trace.metadata import read_metadata
from moescope.trace.pieces import Piece, try_piece
from moescope.trace.raw import RawEvents
from moescope.trace.source import is_gzip
from moescope.trace.split import BLOCK_BYTES, LARGEST_BYTES, FileSplitter, Splitter

_AHEAD_EACH = 2
_LONGEST_GAP_BYTES = 1 << 12


@dataclass(slots=True)
class Scan:
    """Raw tables of one file, times relative to its base, and what was wrong with it."""

    events: RawEvents
    comm: pl.DataFrame
    memory: pl.DataFrame
    num_recorded: int
    """Elements of the event list, of any phase."""
    labels: dict[str, str]
    info: dict[str, Any]
    faults: Faults
    num_bytes: int
    """Size of the content, inflated."""


def scan(
    path: Path, crew: Crew | None = None, block_bytes: int = BLOCK_BYTES, largest_bytes: int = LARGEST_BYTES
) -> Scan | None:
    """Read the file at ``path`` in blocks of about ``block_bytes``; None when it holds no list of trace events.

    Of an event or of metadata longer than ``largest_bytes`` the middle is left out.
    """
    reading = _Reading((Splitter if is_gzip(path) else FileSplitter)(path, block_bytes, largest_bytes))
    with _no_collection():
        tail = reading.run(crew)
    splitter, tables = reading.splitter, reading.tables
    faults = tables.faults
    if splitter.oversized:
        faults.note("oversized", f"byte {splitter.oversized[0]:,}", len(splitter.oversized))
    if splitter.fault:
        faults.note("gzip-damaged", f"noticed at byte {splitter.num_bytes:,} of the content", detail=splitter.fault)
    nothing = sum(faults.counts.get(code, 0) for code in ("unknown-phase", "not-an-event", "dropped-events"))
    if not splitter.found or not (tables.num_recorded > nothing or splitter.has_key):
        return None
    if splitter.key_lost:
        faults.note("key-damaged", "head")
    return Scan(
        tables.events(),
        tables.comm(),
        tables.memory(),
        tables.num_recorded,
        tables.labels,
        read_metadata(splitter.head, tail, faults),
        faults,
        splitter.num_bytes,
    )


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without cyclic collection: a block's records hold no cycles and are freed by counting."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass(slots=True)
class _Reading:
    """The blocks of a file, in order."""

    splitter: Splitter
    tables: RawTables = field(default_factory=lambda: RawTables(Faults()))
    _open: bytes = b""
    """Part of an event, from ``_open_at`` on, that may continue in the next block."""
    _open_at: int = 0
    _looked_through: int = 0
    """How long it was when last it did not end: not before it is twice as long it is looked through again."""
    _tail: bytes | None = None
    """What follows the end of the list, once that is found."""
    _read_to: int = 0

    def run(self, crew: Crew | None) -> bytes:
        """Read every block; return what follows the list's end."""
        for piece, block in self._outcomes(crew):
            if block is not None and (self._tail is None or _has_events(block)):
                self._mend(b"", piece.offset, "event")
                self._resume()
                self.tables.add(block)
            else:
                data = piece.read()
                self._mend(data, piece.offset, "part")
                if len(data) < piece.length:  # somebody cut the file meanwhile
                    self.tables.faults.note("truncated", f"byte {piece.offset + len(data):,}")
            self._read_to = piece.offset + piece.length
            self.splitter.reuse(piece)
        if self.splitter.found:
            self._mend(self.splitter.rest, self.splitter.rest_offset, "nothing")
        return self._tail or b""

    def _resume(self) -> None:
        """Go on where what looked like the list's end was not: events follow."""
        if self._tail is not None:
            self.tables.faults.note("junk", f"byte {self._read_to - len(self._tail):,}")
            self._tail = None

    def _outcomes(self, crew: Crew | None) -> Iterator[tuple[Piece, Block | None]]:
        pieces = self.splitter.pieces()
        if not isinstance(self.splitter, FileSplitter) and (crew is None or crew.num_helpers > 1):
            # Inflating takes a processor of its own; of two, one inflates between its blocks, the other helps.
            pieces = ahead(pieces, _AHEAD_EACH)
        if crew is None:
            for piece in pieces:
                check()
                yield piece, try_piece(piece)
            return
        most = _AHEAD_EACH * (crew.num_helpers + 1)
        for (piece,), block in crew.run(try_piece, ((piece,) for piece in pieces), most):
            yield piece, block

    def _mend(self, data: bytes, offset: int, follows: Follows) -> None:
        """Take ``data``, together with what the previous block left open, as far as it can be read."""
        gap = min(offset - self._read_to, _LONGEST_GAP_BYTES)
        bridge = b",".ljust(max(1, gap))  # what the cut between the blocks took
        if self._tail is not None:
            self._tail = self.splitter.without_middle(self._tail + bridge + data, self._read_to)
            return
        if self._open:
            data, offset, self._open = self._open + (bridge + data if data else b""), self._open_at, b""
        if not data and follows != "nothing":
            return
        if follows == "part" and len(data) < 2 * self._looked_through:
            self._keep_open(data, offset)
            return
        mended = mend(data, offset, self.tables.faults, follows)
        self._add(mended, offset)
        if mended.ended:
            self._tail = data[mended.rest :]
        else:
            self._keep_open(data[mended.rest :], offset + mended.rest)
            self._looked_through = len(self._open)

    def _add(self, mended: Mended, offset: int) -> None:
        """Append what was mended; where all together are refused, what each is on its own."""
        try:
            self.tables.add(decode_block(mended.json()))
            return
        except NOT_DECODED:
            pass
        for event in mended.events:
            try:
                block = decode_block(Mended([event]).json())
            except NOT_DECODED:
                self.tables.faults.note("dropped-events", f"byte {offset:,} or later")
                block = decode_block(Mended([LOST]).json())
            self.tables.add(block)

    def _keep_open(self, data: bytes, offset: int) -> None:
        self._open, self._open_at = self.splitter.without_middle(data, offset), offset


def _has_events(block: Block) -> bool:
    return block.num_recorded > block.odd_phases[0]
