"""Events as Python objects -> raw columns, one event at a time."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from moescope.trace.decimals import INT64_MAX, LONGEST_NS, as_int, microseconds_to_ns
from moescope.trace.document import Document, Event
from moescope.trace.model import COMM_SCHEMA, MEMORY_SCHEMA

RAW_SCHEMA: dict[str, pl.DataType] = {
    "index": pl.UInt32(),
    "ts_ns": pl.Int64(),
    "dur_ns": pl.Int64(),
    "recorded": pl.String(),
    "name": pl.String(),
    "pid": pl.Int64(),
    "tid": pl.Int64(),
    "device": pl.Int64(),
    "stream": pl.Int64(),
    "correlation": pl.Int64(),
    "external_id": pl.Int64(),
    "bytes": pl.Int64(),
    "input_dims": pl.String(),
    "input_types": pl.String(),
    "concrete_inputs": pl.String(),
}
"""Complete events before the base time, the categories and the kinds are applied."""

_COMM_KEYS = ("Collective name", "Process Group Name", "In msg nelems")


@dataclass(slots=True)
class Raw:
    """A file's tables before finishing, with times relative to the file's base."""

    events: pl.DataFrame
    comm: pl.DataFrame
    memory: pl.DataFrame
    num_recorded: int
    """Elements of the event list, of any phase."""
    labels: dict[str, str] = field(default_factory=dict)
    """Process labels and names from the metadata events, by ``"{event name} {pid}"``."""


def tabulate(document: Document) -> Raw:
    """The three raw tables of ``document``; faults of single events are noted in it."""
    events: list[tuple[Any, ...]] = []
    comm: list[tuple[Any, ...]] = []
    memory: list[tuple[Any, ...]] = []
    labels: dict[str, str] = {}
    for index, event in enumerate(document.events):
        if event is None:
            continue
        phase, args = event.get("ph"), event.get("args")
        args = args if isinstance(args, dict) else {}
        if phase == "X":
            if row := _complete(index, event, args, document):
                events.append(row)
                if any(key in args for key in _COMM_KEYS):
                    comm.append(_communication(index, args))
        elif event.get("name") == "[memory]":
            memory.append(_memory(event, args))
        elif phase == "M" and event.get("name") in ("process_name", "process_labels"):
            labels[f"{event['name']} {event.get('pid')}"] = str(args.get("name", args.get("labels")))
    return Raw(
        pl.DataFrame(events, RAW_SCHEMA, orient="row"),
        pl.DataFrame(comm, COMM_SCHEMA, orient="row"),
        pl.DataFrame(memory, MEMORY_SCHEMA, orient="row"),
        len(document.events),
        labels,
    )


def _complete(index: int, event: Event, args: dict[str, Any], document: Document) -> tuple[Any, ...] | None:
    where = f"event {index}"
    start = microseconds_to_ns(event.get("ts"))
    if start is None or abs(start) > INT64_MAX:
        document.note("no-start", "complete events without a usable timestamp were dropped", where, loses_data=True)
        return None
    duration = microseconds_to_ns(event.get("dur", 0))
    if duration is None or not 0 <= duration <= LONGEST_NS:
        document.note("bad-duration", "durations that are negative, overflowed or no number", where, loses_data=True)
        duration = 0
    return (
        index,
        start,
        duration,
        _text(event.get("cat")),
        _text(event.get("name")) or "",
        _int64(event.get("pid")),
        _int64(event.get("tid")),
        _int64(args.get("device")),
        _int64(args.get("stream")),
        _int64(args.get("correlation")),
        _int64(args.get("External id", args.get("external id"))),
        _int64(args.get("bytes", args.get("Bytes"))),
        _json_text(args.get("Input Dims", args.get("Input dims"))),
        _json_text(args.get("Input type")),
        _json_text(args.get("Concrete Inputs")),
    )


def _communication(index: int, args: dict[str, Any]) -> tuple[Any, ...]:
    lists = [_int_list(args.get(key)) for key in ("Process Group Ranks", "In split size", "Out split size")]
    return (
        index,
        _text(args.get("Collective name")),
        _text(args.get("dtype")),
        _int64(args.get("In msg nelems")),
        _int64(args.get("Out msg nelems")),
        _int64(args.get("Group size")),
        _int64(args.get("Seq")),
        _int64(args.get("Src Rank")),
        _int64(args.get("Dst Rank")),
        _text(args.get("Process Group Name")),
        _text(args.get("Process Group Description")),
        *(values for values, _ in lists),
        any(cut for _, cut in lists),
    )


def _memory(event: Event, args: dict[str, Any]) -> tuple[Any, ...]:
    return (
        microseconds_to_ns(event.get("ts")),
        _int64(event.get("tid")),
        _int64(args.get("Bytes")),
        _uint64(args.get("Addr")),
        _int64(args.get("Total Allocated")),
        _int64(args.get("Total Reserved")),
        _int64(args.get("Device Type")),
        _int64(args.get("Device Id")),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None if value is None else str(value)


def _int64(value: object) -> int | None:
    """``value`` as a signed 64-bit integer; an unsigned one keeps its bits."""
    number = as_int(value)
    if number is None or not -(2**63) <= number < 2**64:
        return None
    return number - 2**64 if number > INT64_MAX else number


def _uint64(value: object) -> int | None:
    number = as_int(value)
    return None if number is None else number % 2**64


def _json_text(value: object) -> str | None:
    return None if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _int_list(value: object) -> tuple[list[int] | None, bool]:
    """A list given as a list or as its text, and whether the profiler cut it short (``...``)."""
    if isinstance(value, str):
        items = value.strip().removeprefix("[").removesuffix("]").split(",")
        values: list[Any] = [item.strip() for item in items if item.strip()]
    elif isinstance(value, list):
        values = value
    else:
        return None, False
    if any(isinstance(item, str) and "..." in item for item in values):
        return None, True
    numbers = [as_int(item) for item in values]
    return (None, False) if None in numbers else ([n for n in numbers if n is not None], False)
