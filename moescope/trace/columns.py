"""Packed blocks -> the raw tables of a file."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.ma  # else polars imports it when it is given its first array
import numpy.typing as npt
import polars as pl

from moescope.intake import MOST_RANKS
from moescope.trace.block import Block, Times, Words
from moescope.trace.decimals import LONGEST_NS
from moescope.trace.decode import decode_block
from moescope.trace.faults import Faults
from moescope.trace.model import COMM_SCHEMA, MEMORY_SCHEMA
from moescope.trace.raw import Coded, IntArray, Mask, RawEvents
from moescope.trace.records import ABSENT, NO_NUMBER
from moescope.trace.spans import OpenSpans

_MOST_ELEMENTS = 1 << 46
"""Of one message; with 16 bytes each it is 2**50 bytes, of which thousands can be added up in 64 bits."""
_MOST_BYTES = 1 << 50
_COMM_LIMITS = {
    **dict.fromkeys(("in_nelems", "out_nelems", "in_splits", "out_splits"), _MOST_ELEMENTS),
    **dict.fromkeys(("group_size", "src_rank", "dst_rank", "group_ranks"), MOST_RANKS),
}
_MEMORY_LIMITS = dict.fromkeys(("bytes", "total_allocated", "total_reserved"), _MOST_BYTES)

_NUMBERS = ("pid", "tid", "device", "stream", "correlation", "external_id", "bytes")
_WORDS = ("recorded", "name", "input_dims", "input_types", "concrete_inputs")
UNNAMED = "(unnamed)"
"""Name of events that have none."""
Number = TypeVar("Number", np.int64, np.uint32)


@dataclass(slots=True)
class Vocabulary:
    """The different texts of a column over all blocks, and each row's place among them."""

    places: dict[str | None, int] = field(default_factory=lambda: {None: 0})
    codes: list[npt.NDArray[np.uint32] | int] = field(default_factory=list)
    """For each block the rows' places, or how many rows it has where none has a word."""

    def add(self, words: Words | None, length: int, marked: Mask | None = None) -> None:
        """Take a block's column of ``length`` rows, of which only ``marked`` have words where that is given."""
        if words is None or not length:
            self.codes.append(length)
            return
        try:
            here = np.fromiter(map(self.places.get, words[1]), np.uint32, len(words[1]))
        except TypeError:  # there are new ones
            here = np.array([self.places.setdefault(word, len(self.places)) for word in words[1]], np.uint32)
        codes = here.take(np.frombuffer(words[0], dtype=np.uint32))
        if marked is not None:
            full = np.zeros(length, dtype=np.uint32)
            full[marked] = codes
            codes = full
        self.codes.append(codes)


@dataclass(slots=True)
class RawTables:
    """The tables of a file under construction, in the order of its blocks; indices count over the whole list."""

    faults: Faults
    num_recorded: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    _index: list[npt.NDArray[np.uint32]] = field(default_factory=list)
    _numbers: dict[str, list[IntArray | int]] = field(
        default_factory=lambda: {name: [] for name in ("ts_ns", "dur_ns", *_NUMBERS)}
    )
    _words: dict[str, Vocabulary] = field(default_factory=lambda: {name: Vocabulary() for name in _WORDS})
    _comm: list[tuple[Any, ...]] = field(default_factory=list)
    _memory: list[tuple[Any, ...]] = field(default_factory=list)
    _missing_start: list[Mask | None] = field(default_factory=list)
    _open: OpenSpans = field(default_factory=OpenSpans)

    def add(self, block: Block) -> None:
        """Append a block."""
        first = self.num_recorded
        self._append(block, _places(block.complete, block.num_rows) + np.uint32(first))
        pairs = self._open.pair(((first + place, event) for place, event in block.spans), self.faults)
        if pairs:
            text = json.dumps([event for _, event in pairs]).encode()
            index = np.array([place for place, _ in pairs], dtype=np.uint32)
            self._append(decode_block(text), index)
        if block.num_long_texts:
            self.faults.note("long-texts", f"from event {first:,} on", block.num_long_texts)
        self.num_recorded += block.num_recorded
        if block.odd_phases[0]:
            self.faults.note("unknown-phase", f"event {first + block.odd_phases[1]:,}", block.odd_phases[0])

    def _append(self, block: Block, index: npt.NDArray[np.uint32]) -> None:
        """Append the rows of a block, which stand at ``index`` of the list."""
        length = block.num_rows
        self._index.append(index)
        self._add_times(block, index)
        self._add_numbers(block, index)
        for name, told in block.words.items():
            words = told
            if name == "name" and None in told[1]:
                unnamed = np.frombuffer(told[0], dtype=np.uint32) == told[1].index(None)
                self._note_rows("no-name", unnamed, index)
                words = told[0], [UNNAMED if word is None else word for word in told[1]]
            self._words[name].add(words, length)
        marked = np.frombuffer(block.operators, dtype=np.bool_) if block.operators else None
        for name in ("input_dims", "input_types", "concrete_inputs"):
            self._words[name].add(block.texts.get(name), length, marked)
        self._comm += [(int(index[row]), *values) for row, values in block.comm]
        self._memory += block.memory
        self.labels |= block.labels

    def _add_times(self, block: Block, index: npt.NDArray[np.uint32]) -> None:
        start, duration = (_ns(block.times[name]) for name in ("ts", "dur"))
        absent = _marked(block.times["ts"].absent, block.num_rows)
        if absent is not None:
            self._note_rows("no-start", absent, index)
        bad = (duration < 0) | (duration > LONGEST_NS)
        bad[block.times["dur"].absent] = True
        if bad.any():
            self._note_rows("bad-duration", bad, index)
            duration = np.where(bad, 0, duration)
        self._numbers["ts_ns"].append(start)
        self._numbers["dur_ns"].append(duration)
        self._missing_start.append(absent)

    def _add_numbers(self, block: Block, index: npt.NDArray[np.uint32]) -> None:
        length = block.num_rows
        linked = None if block.linked.flags is None else np.frombuffer(block.linked.flags, dtype=np.bool_)
        for name in _NUMBERS:
            packed = block.ids.get(name) or block.linked.columns.get(name)
            values: IntArray | int
            if packed is None:
                values = length
            elif name in block.ids or linked is None:
                values = np.frombuffer(packed, dtype=np.int64)
            else:
                values = np.full(length, ABSENT)
                values[linked] = np.frombuffer(packed, dtype=np.int64)
            self._numbers[name].append(values)
            if name in ("pid", "tid") and not isinstance(values, int):
                # A process with a name has a number by now; a thread may have a name alone, "PyTorch Profiler" for one.
                self._note_rows("no-thread", values <= (NO_NUMBER if name == "pid" else ABSENT), index)

    def _note_rows(self, code: str, rows: Mask, index: npt.NDArray[np.uint32]) -> None:
        if rows.any():
            self.faults.note(code, f"event {int(index[rows.argmax()]):,}", int(rows.sum()))

    def events(self) -> RawEvents:
        """The complete events of all blocks, by time and then as in the file; those without a start are left out.

        Takes them out of here.
        """
        self._open.finish(self.faults)
        # Fresh memory costs more than filling it: all columns are joined in the same, and stand in large pieces, for
        # which the system gives large pages.
        joined = np.empty(sum(map(len, self._index)), np.int64)
        order = self._order(_joined(self._numbers["ts_ns"], joined, ABSENT))
        with ThreadPoolExecutor(1) as pool:
            coded = pool.submit(self._coded, order, len(joined))
            numbers = np.empty((len(self._numbers), len(order)), np.int64)
            for column, parts in zip(numbers, self._numbers.values(), strict=True):
                _fill(column, parts, joined, ABSENT, order)
            return RawEvents(*coded.result(), dict(zip(self._numbers, numbers, strict=True)))

    def _coded(self, order: npt.NDArray[np.intp], num_rows: int) -> tuple[npt.NDArray[np.uint32], dict[str, Coded]]:
        """The places in the file and the columns of texts, of ``num_rows`` rows those in ``order``."""
        joined = np.empty(num_rows, np.uint32)
        index, *places = np.empty((len(self._words) + 1, len(order)), np.uint32)
        _fill(index, [*self._index], joined, 0, order)
        self._index.clear()
        words = {}
        for codes, (name, vocabulary) in zip(places, self._words.items(), strict=True):
            _fill(codes, vocabulary.codes, joined, 0, order)
            words[name] = Coded(list(vocabulary.places), codes)
        return index, words

    def _order(self, start: IntArray) -> npt.NDArray[np.intp]:
        """The rows that have a start, by time."""
        order = np.argsort(start, kind="stable")
        return order[~self._absent()[order]] if any(gap is not None for gap in self._missing_start) else order

    def _absent(self) -> Mask:
        lengths = [len(part) for part in self._index]
        pairs = zip(self._missing_start, lengths, strict=True)
        return np.concatenate([np.zeros(n, dtype=bool) if absent is None else absent for absent, n in pairs])

    def comm(self) -> pl.DataFrame:
        """The communication arguments of all blocks."""
        return self._plausible(_table(self._comm, COMM_SCHEMA), _COMM_LIMITS)

    def memory(self) -> pl.DataFrame:
        """The memory events of all blocks, times relative to the file's base."""
        return self._plausible(_table(self._memory, MEMORY_SCHEMA), _MEMORY_LIMITS)

    def _plausible(self, table: pl.DataFrame, limits: dict[str, int]) -> pl.DataFrame:
        """``table`` without the values that are further from 0 than ``limits``; notes them."""
        exceeded = [name for name, limit in limits.items() if _exceeds(table[name], limit)]
        for name in exceeded:
            limit, column = limits[name], pl.col(name)
            least, most = (column.list.min(), column.list.max()) if table.schema[name] == pl.List else (column, column)
            is_odd = ((least < -limit) | (most > limit)).fill_null(False)
            self.faults.note("out-of-range", count=int(table.select(is_odd.sum()).item()))
            table = table.with_columns(pl.when(~is_odd).then(column).alias(name))
        return table


def _exceeds(column: pl.Series, limit: int) -> bool:
    """Whether any number of the column, or of its lists, is further from 0 than ``limit``."""
    if column.null_count() == len(column):
        return False
    numbers = column.explode() if column.dtype == pl.List else column
    least, most = numbers.min(), numbers.max()
    return isinstance(least, int) and isinstance(most, int) and (least < -limit or most > limit)


def _table(rows: list[tuple[Any, ...]], schema: dict[str, pl.DataType]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema, orient="row") if rows else pl.DataFrame(schema=schema)


def _places(flags: bytes | None, length: int) -> npt.NDArray[np.uint32]:
    if flags is None:
        return np.arange(length, dtype=np.uint32)
    return np.flatnonzero(np.frombuffer(flags, dtype=np.bool_)).astype(np.uint32)


def _ns(times: Times) -> IntArray:
    """The times in nanoseconds."""
    if times.unit == "us-float":
        values = np.frombuffer(times.packed, dtype=np.float64)
        whole = np.floor(values)
        fraction: IntArray = np.rint((values - whole) * 1000.0).astype(np.int64)
        return whole.astype(np.int64) * 1000 + fraction
    numbers = np.frombuffer(times.packed, dtype=np.int64)
    return numbers * 1000 if times.unit == "us" else numbers


def _marked(rows: list[int], length: int) -> Mask | None:
    """A mask of ``rows``; None of none."""
    if not rows:
        return None
    mask = np.zeros(length, dtype=bool)
    mask[rows] = True
    return mask


def _fill(
    column: npt.NDArray[Number],
    parts: list[npt.NDArray[Number] | int],
    joined: npt.NDArray[Number],
    absent: int,
    order: npt.NDArray[np.intp],
) -> None:
    """Put the parts into ``column`` in ``order``, joined in the memory of ``joined``; ``parts`` are emptied."""
    if all(isinstance(part, int) for part in parts):
        column[:] = absent
    else:
        np.take(_joined(parts, joined, absent), order, out=column, mode="clip")  # other modes buffer what they put out
    parts.clear()


def _joined(parts: list[npt.NDArray[Number] | int], whole: npt.NDArray[Number], absent: int) -> npt.NDArray[Number]:
    """Fill ``whole`` with the parts one after the other; ``absent`` in as many rows as parts say that are numbers."""
    start = 0
    for part in parts:
        end = start + (part if isinstance(part, int) else len(part))
        whole[start:end] = absent if isinstance(part, int) else part
        start = end
    return whole
