"""One block of events, valid JSON, to raw columns: the fast path, about a quarter of the cost of building dicts.

The block is decoded into typed records that keep the fields of the events table only; what else an event carries is
validated and skipped. The few events that need more are picked out of the block's bytes (:mod:`moescope.trace.extras`).
"""

from __future__ import annotations

import json
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

Scalar = int | float | str | bool | None
PHASES = frozenset("XBEiICbnestfPNODMVvRc(),")
"""Phases that the trace event format knows."""

_NO_TEXT = msgspec.Raw()


class _Args(msgspec.Struct, frozen=True, gc=False):
    external_id: Scalar = msgspec.field(default=None, name="External id")
    device: Scalar = None
    stream: Scalar = None
    correlation: Scalar = None
    bytes: Scalar = None
    concrete_inputs: msgspec.Raw = msgspec.field(default=_NO_TEXT, name="Concrete Inputs")
    input_types: msgspec.Raw = msgspec.field(default=_NO_TEXT, name="Input type")
    input_dims: msgspec.Raw = msgspec.field(default=_NO_TEXT, name="Input Dims")
    collective: msgspec.Raw = msgspec.field(default=_NO_TEXT, name="Collective name")
    old_external_id: Scalar = msgspec.field(default=None, name="external id")


class _Event(msgspec.Struct, frozen=True, gc=False):
    ph: str | None = None
    cat: str | None = None
    name: Scalar = None
    pid: Scalar = None
    tid: Scalar = None
    ts: Scalar = None
    dur: Scalar = None
    args: _Args | None = None


_NO_ARGS = _Args()


class _Times(msgspec.Struct, frozen=True, gc=False):
    ph: str | None = None
    ts: msgspec.Raw = _NO_TEXT
    dur: msgspec.Raw = _NO_TEXT


_EVENTS = msgspec.json.Decoder(list[_Event])
_TIMES = msgspec.json.Decoder(list[_Times])
_ArrayTimes = tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_] | None]
"""Nanoseconds, zero where missing; and where that is, None for nowhere."""


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


def decode_block(data: bytes) -> Block:
    """Decode ``data``, a JSON list of events. Raises :class:`msgspec.DecodeError` where it is not one."""
    events = _EVENTS.decode(data)
    phases = [event.ph for event in events]
    complete = [phase == "X" for phase in phases]
    rows = list(compress(events, complete))
    index = _places(complete)
    faults = _odd_phases(phases)
    start, duration = _times(data, rows)
    keep = _check_times(start, duration, index, faults)
    frame = pl.DataFrame({"index": index, "ts_ns": start[0], "dur_ns": duration[0], **_columns(rows)})
    return Block(
        frame if keep is None else frame.filter(keep),
        _comm(data, rows, index),
        _memory(data, [event for event in events if event.ph != "X"]),
        len(events),
        _labels(data) if "M" in phases else {},
        faults,
    )


def are_events(data: bytes) -> bool:
    """Whether ``data`` is one or more events separated by commas, as :func:`decode_block` takes them."""
    try:
        return bool(_EVENTS.decode(b"[" + data + b"]"))
    except msgspec.DecodeError:
        return False


def _places(flags: list[bool]) -> npt.NDArray[np.uint32]:
    return np.flatnonzero(np.array(flags, dtype=bool)).astype(np.uint32)


def _columns(rows: list[_Event]) -> dict[str, pl.Series]:
    args = [event.args or _NO_ARGS for event in rows]
    external = [a.external_id for a in args]
    if None in external:
        external = [a.external_id if a.external_id is not None else a.old_external_id for a in args]
    return {
        "recorded": _words([event.cat for event in rows]),
        "name": _words([event.name for event in rows]),
        "pid": _integers([event.pid for event in rows]),
        "tid": _integers([event.tid for event in rows]),
        "device": _integers([a.device for a in args]),
        "stream": _integers([a.stream for a in args]),
        "correlation": _integers([a.correlation for a in args]),
        "external_id": _integers(external),
        "bytes": _integers([a.bytes for a in args]),
        "input_dims": _texts([a.input_dims for a in args]),
        "input_types": _texts([a.input_types for a in args]),
        "concrete_inputs": _texts([a.concrete_inputs for a in args]),
    }


def _words(values: list[Any]) -> pl.Series:
    try:
        series = pl.Series(values, dtype=pl.String)
    except TypeError:
        series = pl.Series([None if value is None else str(value) for value in values], dtype=pl.String)
    return series.cast(pl.Categorical)


def _integers(values: list[Any]) -> pl.Series:
    try:
        return pl.Series(values, dtype=pl.Int64)
    except (TypeError, OverflowError):
        known = {value: as_int64(value) for value in set(values)}
        return pl.Series([known[value] for value in values], dtype=pl.Int64)


def _texts(values: list[msgspec.Raw]) -> pl.Series:
    """JSON texts as a dictionary-encoded column, spaced as :func:`json.dumps` does; most rows have none."""
    present = [value is not _NO_TEXT for value in values]
    texts = [_canonical(bytes(value)) for value in compress(values, present)]
    places = np.full(len(values), -1, dtype=np.int64)
    places[_places(present)] = np.arange(len(texts))
    words = pl.Series(texts, dtype=pl.String).cast(pl.Categorical)
    return words.gather(pl.Series(places).replace(-1, None))


@lru_cache(maxsize=1 << 16)
def _canonical(text: bytes) -> str:
    value = msgspec.json.decode(text.decode("utf-8", "replace"))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _times(data: bytes, rows: list[_Event]) -> tuple[_ArrayTimes, _ArrayTimes]:
    """Starts and durations of the complete events ``rows`` of ``data``."""
    start, duration = _exact([event.ts for event in rows]), _exact([event.dur for event in rows])
    if start is not None and duration is not None:
        return (start, None), (duration, None)
    texts = [event for event in _TIMES.decode(data) if event.ph == "X"]
    return ns_of_values(_text(event.ts) for event in texts), ns_of_values(_text(event.dur) for event in texts)


def _text(raw: msgspec.Raw) -> str:
    return bytes(raw).decode().strip('"')


def _exact(values: list[Any]) -> npt.NDArray[np.int64] | None:
    """Nanoseconds where the decoded numbers are known to give them exactly; None where the text must be read."""
    if not values:
        return np.zeros(0, np.int64)
    try:
        numbers = np.asarray(values)
    except (ValueError, OverflowError):
        return None
    if numbers.dtype == np.int64:
        return ns_of_integers(numbers)
    return ns_of_floats(numbers) if numbers.dtype == np.float64 else None


def _check_times(
    start: _ArrayTimes, duration: _ArrayTimes, index: npt.NDArray[np.uint32], faults: list[tuple[str, int, int]]
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


def _odd_phases(phases: list[str | None]) -> list[tuple[str, int, int]]:
    odd = {phase for phase in set(phases) if phase not in PHASES}
    if not odd:
        return []
    where = [place for place, phase in enumerate(phases) if phase in odd]
    return [("unknown-phase", len(where), where[0])]


def _comm(data: bytes, rows: list[_Event], index: npt.NDArray[np.uint32]) -> pl.DataFrame:
    carriers = [event.args is not None and event.args.collective is not _NO_TEXT for event in rows]
    if not any(carriers):
        return pl.DataFrame(schema=COMM_SCHEMA)
    places = index[np.array(carriers, dtype=bool)].tolist()
    picked = extras.pick(data, b'"Collective name"', extras.carries_communication, len(places))
    found = [extras.communication_row(i, extras.arguments(event)) for i, event in zip(places, picked, strict=True)]
    return pl.DataFrame(found, COMM_SCHEMA, orient="row")


def _memory(data: bytes, others: list[_Event]) -> pl.DataFrame:
    expected = sum(event.name == "[memory]" for event in others)
    if not expected:
        return pl.DataFrame(schema=MEMORY_SCHEMA)
    picked = extras.pick(data, b'"[memory]"', extras.is_memory, expected)
    return pl.DataFrame([extras.memory_row(event) for event in picked], MEMORY_SCHEMA, orient="row")


def _labels(data: bytes) -> dict[str, str]:
    return dict(extras.label(event) for event in extras.pick(data, b'"process_', extras.names_process, None))
