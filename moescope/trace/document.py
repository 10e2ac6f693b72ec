"""One file's JSON as Python objects, read strictly where possible and event by event where not.

Supports a top-level object with ``traceEvents`` or a bare list of events. What is broken is repaired or dropped event
by event; every repair and every loss is counted with the byte offset of the first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from moescope.trace.repair import repair_object

Event = dict[str, Any]

_EVENTS_KEY = re.compile(r'"traceEvents"\s*:\s*\[')
_NEXT_EVENT = re.compile(
    r'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|id|s|args|bp)"\s*:)|\}\s*,?\s*\]\s*(?=[,}]|\Z)'
)
_SEPARATOR = re.compile(r"[\s,]*")
_DECODER = json.JSONDecoder(parse_float=str, parse_constant=str)


@dataclass(slots=True)
class Fault:
    """Repairs or losses of one sort: how many, and where the first is."""

    code: str
    what: str
    loses_data: bool
    count: int = 0
    where: str = ""


@dataclass(slots=True)
class Document:
    """A file's events (``None`` where an element of the list was no object) and everything around them."""

    events: list[Event | None]
    info: dict[str, Any]
    faults: dict[str, Fault] = field(default_factory=dict)

    def note(self, code: str, what: str, where: str, *, loses_data: bool, count: int = 1) -> None:
        """Count one fault of sort ``code``."""
        fault = self.faults.setdefault(code, Fault(code, what, loses_data, 0, where))
        fault.count += count


def parse(data: bytes) -> Document | None:
    """The document in ``data``; None when it holds no list of trace events."""
    try:
        tree = json.loads(data.decode("utf-8"), parse_float=str, parse_constant=str)
    except (ValueError, RecursionError):
        return _parse_tolerantly(data)
    if isinstance(tree, list):
        return _checked(tree, {}) if any(isinstance(e, dict) and "ph" in e for e in tree[:1000]) else None
    if isinstance(tree, dict) and isinstance(tree.get("traceEvents"), list):
        events = tree.pop("traceEvents")
        return _checked(events, tree)
    return None


def _checked(elements: list[Any], info: dict[str, Any]) -> Document:
    document = Document([e if isinstance(e, dict) else None for e in elements], info)
    for index, event in enumerate(document.events):
        if event is None:
            document.note(
                "not-an-event", "elements of the event list that are no objects", f"event {index}", loses_data=True
            )
    return document


def _parse_tolerantly(data: bytes) -> Document | None:
    # Latin-1 maps bytes to characters one to one, so positions are byte offsets; strings are re-decoded at the end.
    text = data.decode("latin-1")
    match = _EVENTS_KEY.search(text)
    if match:
        start = match.end()
    elif re.match(r"\s*\[\s*\{", text) and '"ph"' in text[:100_000]:
        start = text.index("[") + 1
    else:
        return None
    document = Document([], {})
    end = _read_events(text, start, document)
    head = text[: match.start()] if match else ""
    document.info = _members(head.strip().removeprefix("{")) | _members(text[end:])
    _decode_strings(document)
    return document


def _read_events(text: str, position: int, document: Document) -> int:
    """Append the events from ``position`` on; return where the list ends."""
    while True:
        gap = _SEPARATOR.match(text, position)
        position = gap.end() if gap else position
        commas = gap[0].count(",") if gap else 0
        if commas > 1 or (commas and text[position : position + 1] == "]"):
            document.note("extra-comma", "commas too many between events", f"byte {position}", loses_data=False)
        if position >= len(text):
            document.note("truncated", "the file ends inside the list of events", f"byte {position}", loses_data=True)
            return position
        if text[position] == "]":
            return position + 1
        position = _read_event(text, position, document)


def _read_event(text: str, position: int, document: Document) -> int:
    try:
        event, end = _DECODER.raw_decode(text, position)
    except (ValueError, RecursionError):
        return _mend_event(text, position, document)
    document.events.append(event if isinstance(event, dict) else None)
    if not isinstance(event, dict):
        document.note(
            "not-an-event", "elements of the event list that are no objects", f"byte {position}", loses_data=True
        )
    return end


def _mend_event(text: str, position: int, document: Document) -> int:
    boundary = _NEXT_EVENT.search(text, position)
    end = boundary.start() + 1 if boundary else len(text)
    repaired = repair_object(text[position:end])
    if repaired is not None:
        event, how = repaired
        document.events.append(event)
        document.note(
            "repaired", f"events that are not valid JSON were repaired ({how})", f"byte {position}", loses_data=False
        )
    elif boundary:
        document.events.append(None)
        document.note(
            "dropped-events", "events that are not valid JSON were dropped", f"byte {position}", loses_data=True
        )
    else:
        document.note("truncated", "the file ends inside an event", f"byte {position}", loses_data=True)
    return end


def _members(text: str) -> dict[str, Any]:
    """The ``"key": value`` pairs at the start of ``text`` that can be read."""
    return dict(_pairs(text))


def _pairs(text: str) -> Iterator[tuple[str, Any]]:
    position = 0
    key = re.compile(r'[\s,]*"([^"\\]+)"\s*:\s*')
    while match := key.match(text, position):
        try:
            value, position = _DECODER.raw_decode(text, match.end())
        except (ValueError, RecursionError):
            following = re.compile(r',\s*(?="[^"\\]+"\s*:)').search(text, match.end())
            if following is None:
                return
            position = following.end()
            continue
        yield match[1], value


def _decode_strings(document: Document) -> None:
    bad = 0
    for event in document.events:
        if event is not None:
            bad += _decode_in_place(event)
    bad += _decode_in_place(document.info)
    if bad:
        document.note("bad-utf8", "strings that are not valid UTF-8", "", loses_data=False, count=bad)


def _decode_in_place(node: Any) -> int:
    items = node.items() if isinstance(node, dict) else enumerate(node)
    bad = 0
    for key, value in list(items):
        if isinstance(value, str) and not value.isascii():
            node[key], failed = _decoded(value)
            bad += failed
        elif isinstance(value, dict | list):
            bad += _decode_in_place(value)
    return bad


def _decoded(value: str) -> tuple[str, bool]:
    try:
        raw = value.encode("latin-1")
    except UnicodeEncodeError:  # a \u escape above U+00FF: the string was decoded already
        return value, False
    try:
        return raw.decode("utf-8"), False
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace"), True
