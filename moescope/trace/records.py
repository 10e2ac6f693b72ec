"""The typed records that a block of events is decoded into: the fields of the events table, and no more."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from typing import Any, Literal

import msgspec

Scalar = int | float | str | None
Text = bytes | bytearray
Buffer = Text | memoryview
NO_TEXT = msgspec.Raw()
"""Stands for a list that is absent."""

ABSENT = -(2**63)
"""Stands for a number that is absent."""

NO_NUMBER = ABSENT + 1
"""Stands for what is there but is no number."""

PHASES = frozenset("XBEiICbnestfPNODMVvRc(),")
"""Phases that the trace event format knows."""
NAMED_PHASES = frozenset("MiI")
"""Those whose events say something by their name: metadata and instants."""


class Args(msgspec.Struct, frozen=True, gc=False):
    """Arguments that the events table takes; all others are validated and skipped."""

    external_id: Scalar = msgspec.field(default=ABSENT, name="External id")
    device: Scalar = ABSENT
    stream: Scalar = ABSENT
    correlation: Scalar = ABSENT
    bytes: Scalar = ABSENT
    concrete_inputs: msgspec.Raw = msgspec.field(default=NO_TEXT, name="Concrete Inputs")
    input_types: msgspec.Raw = msgspec.field(default=NO_TEXT, name="Input type")
    input_dims: msgspec.Raw = msgspec.field(default=NO_TEXT, name="Input Dims")
    collective: msgspec.Raw = msgspec.field(default=NO_TEXT, name="Collective name")
    old_external_id: Scalar = msgspec.field(default=ABSENT, name="external id")


class Complete(msgspec.Struct, frozen=True, gc=False, tag_field="ph", tag="X"):
    """A complete event."""

    cat: str | None = None
    name: Scalar = None
    pid: Scalar = ABSENT
    tid: Scalar = ABSENT
    ts: Scalar = ABSENT
    dur: Scalar = ABSENT
    args: Args | None = None


class _Frame(msgspec.Struct, frozen=True, gc=False, tag_field="ph", tag="X"):
    """A complete event whose arguments are of no use."""

    cat: Literal["python_function"]
    name: Scalar = None
    pid: Scalar = ABSENT
    tid: Scalar = ABSENT
    ts: Scalar = ABSENT
    dur: Scalar = ABSENT


class _Any(msgspec.Struct, frozen=True, gc=False):
    """An event of any phase or none."""

    ph: Scalar = None
    cat: str | None = None
    name: Scalar = None
    pid: Scalar = ABSENT
    tid: Scalar = ABSENT
    ts: Scalar = ABSENT
    dur: Scalar = ABSENT
    args: Args | None = None


class _Times(msgspec.Struct, frozen=True, gc=False):
    ph: Scalar = None
    ts: msgspec.Raw = NO_TEXT
    dur: msgspec.Raw = NO_TEXT


def _other_phases() -> dict[str, type[msgspec.Struct]]:
    """A record type for each phase but X: the name is of use of metadata and instants, nothing of the others."""
    name = ("name", Scalar, None)
    return {
        phase: msgspec.defstruct(
            f"Phase{ord(phase)}",
            [name] if phase in NAMED_PHASES else [],
            frozen=True,
            gc=False,
            tag_field="ph",
            tag=phase,
        )
        for phase in sorted(PHASES - {"X"})
    }


def _union(types: dict[str, type[msgspec.Struct]]) -> Any:
    union: Any = Complete
    for other in types.values():
        union |= other
    return union


_OTHERS = _other_phases()
_NAMED = frozenset(_OTHERS[phase] for phase in NAMED_PHASES)
_SPANS = frozenset((_OTHERS["B"], _OTHERS["E"]))
_BY_PHASE: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[_union(_OTHERS)])  # type: ignore[misc]
_FRAMES = msgspec.json.Decoder(list[_Frame])
_LOOSE = msgspec.json.Decoder(list[_Any])
_TIMES = msgspec.json.Decoder(list[_Times])


@dataclass(slots=True)
class Records:
    """The records of one block."""

    num_recorded: int
    """Elements of the list, of any phase."""
    complete: list[bool] | None
    """For each element whether it is a complete event; None where all are."""
    rows: list[Complete]
    """The complete events."""
    names: frozenset[Scalar] | set[Scalar]
    """Names of metadata and instants."""
    has_spans: bool = False
    """Whether there are events that begin or end a range (ph B, E)."""
    has_args: bool = True
    """Whether the rows have arguments at all."""
    odd_phases: tuple[int, int] = (0, 0)
    """How many events have no phase that the format knows, and the first one's place."""


def decode_records(data: Text) -> Records:
    """Decode ``data``, a JSON list of events. Raises :class:`msgspec.DecodeError` where it is not one."""
    _check_utf8(data)
    if (frames := _python_frames(data)) is not None:
        return frames
    try:
        events = _BY_PHASE.decode(data)
    except msgspec.ValidationError:  # a phase is missing or unknown, or a field has an odd type
        return _decode_loosely(data)
    complete = [type(event) is Complete for event in events]
    rows = list(compress(events, complete))
    if len(rows) == len(events):
        return Records(len(rows), None, rows, frozenset())
    names = {event.name for event in events if type(event) in _NAMED}
    return Records(len(events), complete, rows, names, not _SPANS.isdisjoint(map(type, events)))


def _python_frames(data: Text) -> Records | None:
    """The records of a block of Python functions alone, which is how profilers with stacks fill most of a file."""
    end = data.rfind(b"]")
    if b"python_function" not in data[:256] or b"python_function" not in data[end - 512 : end]:
        return None
    try:
        rows: list[Any] = _FRAMES.decode(data)
    except msgspec.ValidationError:
        return None
    return Records(len(rows), None, rows, frozenset(), has_args=False)


def _decode_loosely(data: Text) -> Records:
    events = _LOOSE.decode(data)
    odd = [place for place, event in enumerate(events) if event.ph not in PHASES]
    complete = [event.ph == "X" for event in events]
    names = {event.name for event in events if event.ph in NAMED_PHASES}
    rows: list[Any] = list(compress(events, complete))
    has_spans = any(event.ph in ("B", "E") for event in events)
    return Records(len(events), complete, rows, names, has_spans, odd_phases=(len(odd), odd[0] if odd else 0))


def decode_time_texts(data: Text) -> list[tuple[str, str]]:
    """The texts of start and duration of each complete event of ``data``."""
    return [(_text(event.ts), _text(event.dur)) for event in _TIMES.decode(data) if event.ph == "X"]


def _text(raw: msgspec.Raw) -> str:
    return bytes(raw).decode().strip('"')


def _check_utf8(data: Text) -> None:
    """Raise for bad UTF-8 anywhere: the decoder does not look into what it skips."""
    if not data.isascii():
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise msgspec.DecodeError(str(error)) from error
