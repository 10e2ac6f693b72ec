"""A stretch of the event list that is not valid JSON -> the events that can be read, as valid JSON.

The stretch is cut wherever an event seems to begin. Runs of pieces that are valid together are kept as they are; a
piece that is not is read on into the next ones (the cut may lie inside an event), else repaired, else dropped. Every
repair and every loss is counted, with the byte offset of the first. However long the damage, each part is looked at a
bounded number of times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

from moescope.trace.decode import are_events
from moescope.trace.faults import Faults
from moescope.trace.repair import plain_fields, redecode, repair_object
from moescope.trace.split import EVENT_START, PHASED_EVENT

_START = re.compile(EVENT_START)
_PHASED = re.compile(PHASED_EVENT)
_GAP = re.compile(r"[\s,]*")
_ENDS = re.compile(r"\}\s*\](?=\s*(?:[,}]|\Z))")
# Begins with a literal, which the expression's engine finds ten times faster than what ignores case.
_NOT_A_NUMBER = re.compile(r'(":(?<!\\":)\s*+)(-?(?:[nN][aA][nN]|[iI][nN][fF](?:[iI][nN][iI][tT][yY])?))(?=\s*[,}\]])')
_CONSTANT = re.compile(r"(?<=[\[,\s-])(?:NaN|Infinity)(?=\s*[,\]])")
"""One that is an element of a list, where it stays until the list is decoded."""
_LONGEST_NUMBER = 4000
"""Digits of an integer, of which Python takes 4300."""


def _integer(text: str) -> int | str:
    return int(text) if len(text) <= _LONGEST_NUMBER else text


_STRICT = json.JSONDecoder(parse_float=str, parse_int=_integer, parse_constant=lambda _: "")
Follows = Literal["part", "event", "nothing"]
"""What may follow a stretch: the rest of its last event, a new event, or nothing of the list."""

LOST = '{"ph":"D"}'
_JOINED = 8
"""Pieces together that an event seldom exceeds: cuts may lie inside it."""
_WINDOW = 1 << 13
"""Characters to look for the end of a value in at first."""
_LEAST_LOOK_AHEAD = 8 << 20
_LOOK_AHEAD = 16
"""Times a stretch's own length to look for the ends of values in all: a bracket that never closes takes in the rest."""
_LONGEST_RUN = 4096
_TRIED = 4 << 20
"""Characters of a stretch's last piece to try to repair beyond its own length: the list may end anywhere in it."""
_CUT_NUMBER_OR_WORD = 16
"""From the end of a text an error may lie, where it is an error only because the text ends there."""


@dataclass(slots=True)
class Mended:
    """What a stretch of the list came to."""

    events: list[str] = field(default_factory=list)
    """Pieces of valid JSON, each one or more events separated by commas; ``LOST`` stands for one that was lost."""
    rest: int = 0
    """Where the part begins that may continue in the next stretch; if ``ended``, where the list's end is behind."""
    ended: bool = False
    """Whether the list's closing bracket was found."""

    def json(self) -> bytes:
        """The events as one JSON list."""
        return ("[" + ",".join(self.events) + "]").encode("latin-1")


def mend(data: bytes, offset: int, faults: Faults, follows: Follows) -> Mended:
    """Read what can be read of ``data``, which lies at byte ``offset`` of the file.

    Where a part ``follows``, what is incomplete at the end is left in ``rest``.
    """
    # Latin-1 maps bytes to characters one to one, so positions are byte offsets.
    text, count = _NOT_A_NUMBER.subn(_blank, data.decode("latin-1"))
    if count:
        faults.note("not-a-number", f"byte {offset}", count)
    return _Mender(text, offset, faults, follows, list(_starts(text))).run()


def _blank(match: re.Match[str]) -> str:
    """An empty string in place of NaN, as long as what it replaces."""
    return match[1] + '""'.ljust(len(match[2]))


def _starts(text: str) -> Iterator[int]:
    """Where events seem to begin: not at the value of a key, not at the first element of a list inside an event."""
    for match in _START.finditer(text):
        before = text[max(0, match.start() - 64) : match.start()].rstrip()
        if not before.endswith((":", "[")):
            yield match.start()


@dataclass(slots=True)
class _Mender:
    text: str
    offset: int
    faults: Faults
    follows: Follows
    starts: list[int]
    out: Mended = field(default_factory=Mended)
    invalid_to: int = -1
    looked_ahead: int = 0
    tried: int = 0

    def run(self) -> Mended:
        """Take runs of pieces, shorter after one that is not valid, longer after one that is."""
        position: int | None = 0
        piece, run = 0, 64
        while position is not None and (position := self._next(position)) is not None:
            while piece < len(self.starts) and self.starts[piece] <= position:
                piece += 1
            run = self._valid_run(position, piece, run)
            if run:
                taken = self._piece(position, self._bound(piece + run - 1))
                self.out.events.append(taken)
                position, run = position + len(taken), min(2 * run, _LONGEST_RUN)
            else:
                position, run = self._single(position, piece), 1
        return self.out

    def _valid_run(self, position: int, piece: int, run: int) -> int:
        """How many pieces from ``position`` on are valid together: ``run`` or fewer, 0 where the first is not."""
        while run and not self._is_valid(position, self._bound(piece + run - 1)):
            run //= 4
        return run

    def _is_valid(self, position: int, end: int) -> bool:
        """Whether there are valid events from ``position`` to ``end``; not asked twice of the same piece's end, since
        what is wrong usually lies behind the value that has been taken of it meanwhile."""
        if end == self.invalid_to:
            return False
        valid = are_events(self._piece(position, end).encode("latin-1"))
        if not valid:
            self.invalid_to = end
        return valid

    def _bound(self, piece: int) -> int:
        """Where the piece before start number ``piece`` ends."""
        return self.starts[piece] if piece < len(self.starts) else len(self.text)

    def _piece(self, position: int, end: int) -> str:
        return self.text[position:end].rstrip(" \t\r\n,")

    def _next(self, position: int) -> int | None:
        """Where the next event begins; None where the list or the stretch is over."""
        while True:
            gap = _GAP.match(self.text, position)
            begin, position = position, gap.end() if gap else position
            at_end = self.text[position : position + 1] in ("", "]")
            commas = self.text.count(",", begin, position)
            if commas > 1 or (commas == 1) == (at_end or not self.out.events):
                self._note_commas(position, commas, at_end)
            if not at_end:
                return position
            if position == len(self.text):
                self._stop(position)
                return None
            further = _PHASED.search(self.text, position)
            if further is None:
                self.out.rest, self.out.ended = position + 1, True
                return None
            between = self.text[position + 1 : further.start()].strip(" \t\r\n,")
            self._note("junk" if between else "separators", position)
            position = further.start()

    def _note_commas(self, position: int, commas: int, at_end: bool) -> None:
        """Commas too many or too few, except at the stretch's ends, where a cut may have taken or left one."""
        if position < len(self.text) and (commas > 1 or self.out.events or not at_end):
            self._note("separators", position)

    def _stop(self, position: int) -> None:
        self.out.rest = position
        if self.follows == "nothing":
            self._note("truncated", position)

    def _single(self, position: int, piece: int) -> int | None:
        """Take the one piece at ``position``, which is not valid as it stands; return where to go on."""
        end = self._bound(piece)
        found = self._value(position, self._bound(piece + _JOINED - 1))
        if found is None:
            return self._broken(position, end)
        value, after = found
        text = self.text[position:after]
        if are_events(text.encode("latin-1")):
            self.out.events.append(text)
        else:
            if _CONSTANT.search(text):
                self._note("not-a-number", position)
            self._emit(value, position)
        gap = _GAP.match(self.text, after)
        behind = gap.end() if gap else after
        if behind < end and self.text[behind] != "]" and self._value(behind, end) is None:
            self._note("junk", after)
            return position + len(self._piece(position, end))
        return after

    def _value(self, position: int, enough: int) -> tuple[Any, int] | None:
        """The JSON value at ``position`` and where it ends; ``enough`` is where it usually has ended.

        An error's place is told by lines, which takes as long as the text before it is: so no more of that than needed.
        """
        end = min(enough, position + _WINDOW)
        while True:
            text = self.text[position:end]
            try:
                value, length = _STRICT.raw_decode(text)
            except json.JSONDecodeError as error:
                ends_early = error.pos >= len(text) - _CUT_NUMBER_OR_WORD or error.msg.startswith("Unterminated string")
                most = max(_LEAST_LOOK_AHEAD, _LOOK_AHEAD * len(self.text))
                if not ends_early or end >= len(self.text) or self.looked_ahead > most:
                    return None
                end = min(len(self.text), position + 8 * len(text))
                self.looked_ahead += end - position
            except (ValueError, RecursionError):
                return None
            else:
                return value, position + length

    def _broken(self, position: int, end: int) -> int | None:
        if end == len(self.text) and self.follows == "part":
            self.out.rest = position
            return None
        for stop in chain(self._list_ends(position, end), self._whole(position, end)):
            piece_text = self._piece(position, stop)
            repaired = repair_object(piece_text)
            if repaired is not None:
                self._note("repaired", position, detail=repaired[1])
                self._emit(repaired[0], position)
                return position + len(piece_text)
        return self._drop(position, end)

    def _list_ends(self, position: int, end: int) -> Iterator[int]:
        """Where the list may end in the last piece: behind the brace before a bracket."""
        if end < len(self.text):
            return
        for match in _ENDS.finditer(self.text, position):
            if not self._may_try(match.start() - position):
                return
            yield match.start() + 1

    def _whole(self, position: int, end: int) -> Iterator[int]:
        """The end of a piece; of the last one, tried again behind each end of the list, not any number of times."""
        if end < len(self.text) or self._may_try(end - position):
            yield end

    def _may_try(self, length: int) -> bool:
        self.tried += length
        return self.tried <= _TRIED + len(self.text)

    def _drop(self, position: int, end: int) -> int:
        last = _ENDS.search(self.text, position) if end == len(self.text) else None
        stop = last.start() + 1 if last else position + len(self._piece(position, end))
        lost = max(1, self.text.count('"ph"', position, stop))
        self._note("dropped-events", position, lost)
        self.out.events += [LOST] * lost
        return stop

    def _emit(self, value: Any, position: int) -> None:
        if not isinstance(value, dict):
            self._note("not-an-event", position)
            self.out.events.append(LOST)
            return
        try:
            event, bad = redecode(value)
        except RecursionError:
            self._note("dropped-events", position)
            self.out.events.append(LOST)
            return
        if bad:
            self._note("bad-utf8", position, bad)
        event, odd = plain_fields(event)
        if odd:
            self._note("odd-fields", position)
        self.out.events.append(json.dumps(event))

    def _note(self, code: str, position: int, count: int = 1, detail: str = "") -> None:
        self.faults.note(code, f"byte {self.offset + position:,}", count, detail)
