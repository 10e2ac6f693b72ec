"""One block of events, valid JSON, to raw columns: the fast path, less than half the cost of building dicts.

Records become columns a field at a time; arguments that few events have are gathered from those alone. The few events
that need more than the record keeps are picked out of the block's bytes (:mod:`moescope.trace.extras`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import compress
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from moescope.trace import extras
from moescope.trace.decimals import LONGEST_NS, as_int64, ns_of_floats, ns_of_integers, ns_of_values
from moescope.trace.model import COMM_SCHEMA, MEMORY_SCHEMA
from moescope.trace.records import (
    NO_TEXT,
    Args,
    Buffer,
    Complete,
    Records,
    Scalar,
    decode_records,
    decode_time_texts,
    places,
)

_NO_ARGS = Args()
_NULL_INTEGER = pl.Series([None], dtype=pl.Int64)
_NULL_WORD = pl.Series([None], dtype=pl.Categorical)
_Places = npt.NDArray[np.uint32]
_Times = tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_] | None]
"""Nanoseconds, zero where missing; and where that is, None for nowhere."""
_NO_ARGUMENTS = dict.fromkeys(
    ("device", "stream", "correlation", "external_id", "bytes"), _NULL_INTEGER
) | dict.fromkeys(("input_dims", "input_types", "concrete_inputs"), _NULL_WORD)
_EXACT: tuple[tuple[type[pl.DataType], Callable[[Any], npt.NDArray[np.int64] | None]], ...] = (
    (pl.Int64, ns_of_integers),
    (pl.Float64, ns_of_floats),
)


@dataclass(slots=True)
class Block:
    """What a block of events holds; times relative to the file's base, indices to the block's first event."""

    events: pl.DataFrame
    comm: pl.DataFrame
    memory: pl.DataFrame
    num_recorded: int
    """Elements of the list, of any phase."""
    labels: dict[str, str] = field(default_factory=dict)
    faults: list[tuple[str, int, int]] = field(default_factory=list)
    """(code, count, first index in the block) of events whose values cannot be taken as they stand."""


def decode_block(data: Buffer) -> Block:
    """Decode ``data``, a JSON list of events. Raises :class:`msgspec.DecodeError` where it is not one."""
    records = decode_records(data)
    block = Block(
        pl.DataFrame(),
        pl.DataFrame(schema=COMM_SCHEMA),
        pl.DataFrame(schema=MEMORY_SCHEMA),
        records.num_recorded,
    )
    if records.odd_phases[0]:
        block.faults.append(("unknown-phase", *records.odd_phases))
    _fill_events(block, data, records)
    if "[memory]" in records.names:
        block.memory = _memory(data)
    if records.names & extras.PROCESS_NAMES:
        block.labels |= _labels(data)
    return block


def _fill_events(block: Block, data: Buffer, records: Records) -> None:
    rows, index = records.rows, records.index
    start, duration = _times(data, rows)
    keep = _check_times(start, duration, index, block.faults)
    names, threads = [event.name for event in rows], [event.tid for event in rows]
    processes = [event.pid for event in rows]
    for code, values in (("no-name", names), ("no-thread", threads), ("no-thread", processes)):
        if None in values:
            block.faults.append((code, values.count(None), int(index[values.index(None)])))
    frame = pl.DataFrame(
        {
            "index": index,
            "ts_ns": start[0],
            "dur_ns": duration[0],
            "recorded": _words([event.cat for event in rows]),
            "name": _words(names),
            "pid": _processes(processes, block.labels),
            "tid": _integers(threads),
            **_argument_columns(block, data, records),
        }
    )
    block.events = frame if keep is None else frame.filter(keep)


def _argument_columns(block: Block, data: Buffer, records: Records) -> dict[str, pl.Series]:
    """What events have in their arguments; also fills the block's table of communication arguments."""
    if not records.has_args:
        return {name: null.new_from_index(0, len(records.rows)) for name, null in _NO_ARGUMENTS.items()}
    args = [event.args or _NO_ARGS for event in records.rows]
    linked = [
        a.correlation is not None or a.device is not None or a.stream is not None or a.bytes is not None for a in args
    ]
    operators = [
        a.input_types is not NO_TEXT
        or a.input_dims is not NO_TEXT
        or a.concrete_inputs is not NO_TEXT
        or a.collective is not NO_TEXT
        for a in args
    ]
    at_linked, at_operators = places(linked), places(operators)
    carriers = [place for place in at_operators.tolist() if args[place].collective is not NO_TEXT]
    if carriers:
        block.comm = _comm(data, records.index[carriers].tolist(), [args[place].collective for place in carriers])
    return _linked_columns(args, at_linked, list(compress(args, linked))) | _operator_columns(
        len(args), at_operators, list(compress(args, operators))
    )


def _linked_columns(args: list[Args], where: _Places, some: list[Args]) -> dict[str, pl.Series]:
    """Ids of all events, and what only device events and calls have: ``some`` of them, at ``where``."""
    external = [a.external_id for a in args]
    old = [a.old_external_id for a in some]
    if old.count(None) < len(old):
        for place, value in zip(where.tolist(), old, strict=True):
            external[place] = value if external[place] is None else external[place]
    spread = _spread(where, np.arange(len(some), dtype=np.uint32), len(args)) if len(some) < len(args) else None
    return {
        "device": _integers([a.device for a in some], spread),
        "stream": _integers([a.stream for a in some], spread),
        "correlation": _integers([a.correlation for a in some], spread),
        "external_id": _integers(external),
        "bytes": _integers([a.bytes for a in some], spread),
    }


def _operator_columns(length: int, where: _Places, some: list[Args]) -> dict[str, pl.Series]:
    return {
        "input_dims": _texts([a.input_dims for a in some], where, length),
        "input_types": _texts([a.input_types for a in some], where, length),
        "concrete_inputs": _texts([a.concrete_inputs for a in some], where, length),
    }


def _spread(where: _Places, values: npt.NDArray[np.uint32], length: int) -> _Places:
    """For each of ``length`` rows the place of its value: ``values`` at ``where``, elsewhere one beyond the last."""
    spread = np.full(length, values.max(initial=0) + 1 if len(values) else 0, dtype=np.uint32)
    spread[where] = values
    return spread


def _words(values: Sequence[Scalar]) -> pl.Series:
    try:
        series = pl.Series(values, dtype=pl.String)
    except TypeError:
        series = pl.Series([None if value is None else str(value) for value in values], dtype=pl.String)
    return series.cast(pl.Categorical)


def _integers(values: list[Any], spread: _Places | None = None) -> pl.Series:
    """A column of ``values``; with ``spread``, of the value at each of its places and null beyond the last."""
    try:
        series = pl.Series(values, dtype=pl.Int64)
    except (TypeError, OverflowError):
        known = {value: as_int64(value) for value in set(values)}
        series = pl.Series([known[value] for value in values], dtype=pl.Int64)
    return series if spread is None else series.append(_NULL_INTEGER)[pl.Series(spread)]


def _processes(values: list[Any], labels: dict[str, str]) -> pl.Series:
    """Process ids; one given as a name gets a number of its own, and the name is noted in ``labels``."""
    try:
        return pl.Series(values, dtype=pl.Int64)
    except (TypeError, OverflowError):
        known = {value: _process(value, labels) for value in set(values)}
        return pl.Series([known[value] for value in values], dtype=pl.Int64)


def _process(value: Scalar, labels: dict[str, str]) -> int | None:
    number = as_int64(value)
    if number is None and isinstance(value, str) and value:
        number = extras.process_number(value)
        labels[f"process_name {number}"] = value
    return number


def _texts(values: list[msgspec.Raw], where: _Places, length: int) -> pl.Series:
    """JSON texts as a dictionary-encoded column of ``length`` rows, null but at ``where``."""
    table: dict[bytes, int] = {}
    codes = np.array([table.setdefault(bytes(value), len(table)) for value in values], dtype=np.uint32)
    words = pl.Series([_canonical(text) for text in table], dtype=pl.String).cast(pl.Categorical)
    spread = np.full(length, len(table), dtype=np.uint32)
    spread[where] = codes
    return words.append(_NULL_WORD)[pl.Series(spread)]


@lru_cache(maxsize=1 << 14)
def _canonical(text: bytes) -> str | None:
    """The JSON text spaced as :func:`json.dumps` does; of a string what it holds; None of no text."""
    if not text:
        return None
    value = msgspec.json.decode(text)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _times(data: Buffer, rows: list[Complete]) -> tuple[_Times, _Times]:
    """Starts and durations of ``rows``, the complete events of ``data``."""
    start, duration = _exact([event.ts for event in rows]), _exact([event.dur for event in rows])
    if start is not None and duration is not None:
        return (start, None), (duration, None)
    texts = decode_time_texts(data)
    return ns_of_values(start for start, _ in texts), ns_of_values(duration for _, duration in texts)


def _exact(values: list[Any]) -> npt.NDArray[np.int64] | None:
    """Nanoseconds where the decoded numbers are known to give them exactly; None where the text must be read."""
    integers_first = not values or type(values[0]) is int
    for dtype, convert in _EXACT if integers_first else reversed(_EXACT):
        try:
            numbers = pl.Series(values, dtype=dtype)
        except (TypeError, OverflowError):
            continue
        return None if numbers.null_count() else convert(numbers.to_numpy())
    return None


def _check_times(
    start: _Times, duration: _Times, index: _Places, faults: list[tuple[str, int, int]]
) -> pl.Series | None:
    """Zero the durations that cannot be; the rows to keep, or None for all."""
    bad = (duration[0] < 0) | (duration[0] > LONGEST_NS)
    bad = bad if duration[1] is None else bad | duration[1]
    if bad.any():
        faults.append(("bad-duration", int(bad.sum()), int(index[bad.argmax()])))
        duration[0][bad] = 0
    missing = start[1]
    if missing is None or not missing.any():
        return None
    faults.append(("no-start", int(missing.sum()), int(index[missing.argmax()])))
    return pl.Series(~missing)


def _comm(data: Buffer, index: list[int], names: list[msgspec.Raw]) -> pl.DataFrame:
    """Communication arguments of the events at ``index``; ``names``: the collectives as they stand in ``data``."""
    picked = extras.pick(data, extras.carries_communication, extras.offsets(data, names), len(index))
    rows = zip(index, picked, strict=True)
    found = [extras.communication_row(i, extras.arguments(event)) for i, event in rows]
    return pl.DataFrame(found, COMM_SCHEMA, orient="row")


def _memory(data: Buffer) -> pl.DataFrame:
    picked = extras.pick(data, extras.is_memory, extras.find_all(data, b'"[memory]"'))
    return pl.DataFrame([extras.memory_row(event) for event in picked], MEMORY_SCHEMA, orient="row")


def _labels(data: Buffer) -> dict[str, str]:
    picked = extras.pick(data, extras.names_process, extras.find_all(data, b'"process_'))
    return dict(map(extras.label, picked))
