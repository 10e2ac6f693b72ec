"""Ranges recorded as two events, their begin (``ph`` ``B``) and their end (``E``) -> complete events.

As the trace event format has it: an end belongs to the last begin of its process and thread that is still open; an
end that is named, to the last of that name. The arguments of both are taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from moescope.trace.decimals import microseconds_to_ns
from moescope.trace.extras import Event, arguments
from moescope.trace.faults import Faults
from moescope.trace.repair import plain_fields

Placed = tuple[int, Event]
"""An event and its index in the list."""


@dataclass(slots=True)
class OpenSpans:
    """Begins that no end was found for yet; carried from block to block."""

    stacks: defaultdict[tuple[object, object], list[Placed]] = field(default_factory=lambda: defaultdict(list))

    def pair(self, events: Iterable[Placed], faults: Faults) -> list[Placed]:
        """The ranges that end among ``events``, each as a complete event at the index of its begin."""
        pairs = []
        for index, event in events:
            stack = self.stacks[str(event.get("pid")), str(event.get("tid"))]
            if event["ph"] == "B":
                stack.append((index, event))
                continue
            depth = _partner(stack, event.get("name"))
            if depth is None:
                _note(faults, index)
                continue
            for unended, _ in stack[depth + 1 :]:
                _note(faults, unended)
            begun, begin = stack[depth]
            del stack[depth:]
            pairs.append((begun, _complete(begin, event, begun, faults)))
        return pairs

    def finish(self, faults: Faults) -> None:
        """Note the begins that never ended."""
        for index in sorted(index for stack in self.stacks.values() for index, _ in stack):
            _note(faults, index)
        self.stacks.clear()


def _partner(stack: list[Placed], name: object) -> int | None:
    if name is None:
        return len(stack) - 1 if stack else None
    return next((depth for depth in reversed(range(len(stack))) if stack[depth][1].get("name") == name), None)


def _complete(begin: Event, end: Event, index: int, faults: Faults) -> Event:
    start_ns, end_ns = microseconds_to_ns(begin.get("ts")), microseconds_to_ns(end.get("ts"))
    event, odd = plain_fields({**begin, "ph": "X", "args": {**arguments(begin), **arguments(end)}})
    if odd:
        faults.note("odd-fields", f"event {index:,}")
    if start_ns is not None and end_ns is not None:
        event["dur"] = _microseconds(end_ns - start_ns)
    return event


def _microseconds(ns: int) -> str:
    return f"{'-' * (ns < 0)}{abs(ns) // 1000}.{abs(ns) % 1000:03}"


def _note(faults: Faults, index: int) -> None:
    faults.note("unpaired", f"event {index:,}")
