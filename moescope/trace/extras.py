"""Communication arguments, memory events and process names: the events that need all their arguments."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import msgspec

from moescope.trace.decimals import as_int, as_int64, microseconds_to_ns
from moescope.trace.records import NAMED_PHASES, Text

Event = dict[str, Any]

PROCESS_NAMES = frozenset(("process_name", "process_labels"))
"""Metadata events that say what a process is."""

LONGEST_NAME = 1 << 16
"""Characters of a name; templates of C++ give tens of thousands."""

decode_events = msgspec.json.Decoder(list[Event], float_hook=str).decode
"""The events of a JSON list; floats keep their text."""


def pick(data: Text, wanted: Callable[[Event], bool]) -> list[Event]:
    """The ``wanted`` events of the JSON list ``data``, in order; floats keep their text."""
    return [event for event in decode_events(data) if wanted(event)]


def carries_communication(event: Event) -> bool:
    """Whether a complete event has communication arguments."""
    return event.get("ph") == "X" and "Collective name" in arguments(event)


def is_memory(event: Event) -> bool:
    """Whether the event is an allocation or a free."""
    return event.get("name") == "[memory]" and event.get("ph") in NAMED_PHASES


def names_process(event: Event) -> bool:
    """Whether the event is metadata that names a process."""
    return event.get("ph") == "M" and event.get("name") in PROCESS_NAMES


def spans(data: Text) -> list[tuple[int, Event]]:
    """(place, event) of each event of the JSON list ``data`` that begins or ends a range."""
    return [(place, event) for place, event in enumerate(decode_events(data)) if event.get("ph") in ("B", "E")]


def arguments(event: Event) -> dict[str, Any]:
    """The event's arguments, empty where there are none."""
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def communication_values(args: dict[str, Any]) -> tuple[Any, ...]:
    """A row of the table of communication arguments, without its index."""
    lists = [_int_list(args.get(key)) for key in ("Process Group Ranks", "In split size", "Out split size")]
    return (
        _text(args.get("Collective name")),
        _text(args.get("dtype")),
        as_int64(args.get("In msg nelems")),
        as_int64(args.get("Out msg nelems")),
        as_int64(args.get("Group size")),
        as_int64(args.get("Seq")),
        as_int64(args.get("Src Rank")),
        as_int64(args.get("Dst Rank")),
        _text(args.get("Process Group Name")),
        _text(args.get("Process Group Description")),
        *(values for values, _ in lists),
        any(cut for _, cut in lists),
    )


def memory_row(event: Event) -> tuple[Any, ...]:
    """A row of the memory table, its time relative to the file's base."""
    args = arguments(event)
    address = as_int(args.get("Addr"))
    return (
        microseconds_to_ns(event.get("ts")),
        as_int64(event.get("tid")),
        as_int64(args.get("Bytes")),
        None if address is None else address % 2**64,
        as_int64(args.get("Total Allocated")),
        as_int64(args.get("Total Reserved")),
        as_int64(args.get("Device Type")),
        as_int64(args.get("Device Id")),
    )


def label(event: Event) -> tuple[str, str]:
    """Key and text of a process name or label; the key ends with the process id as in the events table."""
    args, process = arguments(event), event.get("pid")
    number = as_int64(process)
    number = process_number(str(process)) if number is None else number
    return f"{event.get('name')} {number}", str(args.get("name", args.get("labels", "")))[:LONGEST_NAME]


def process_number(name: str) -> int:
    """A number below that of any process for one that the file gives a name instead: the same in every block."""
    return -(1 << 40) - zlib.crc32(name.encode("utf-8", "replace"))


def _text(value: object) -> str | None:
    return None if value is None else str(value)[:LONGEST_NAME]


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
    numbers = [as_int64(item) for item in values]
    return (None, False) if None in numbers else ([n for n in numbers if n is not None], False)
