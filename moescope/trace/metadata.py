"""What stands around the list of events: the file's top-level metadata."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from moescope.intake import Oddities, plain, read_json
from moescope.trace.faults import Faults
from moescope.trace.repair import redecode

_LIST = re.compile(r',?\s*"traceEvents"\s*:\s*\[\Z|\[\Z')
_KEY = re.compile(r'[\s,{]*"([^"\\]+)"\s*:\s*')
_NEXT_KEY = re.compile(r',\s*(?="[^"\\]+"\s*:)')


def _no_constant(_name: str) -> None:
    """NaN and infinities have no place in metadata."""


_DECODER = json.JSONDecoder(strict=False, parse_constant=_no_constant)


def read_metadata(head: bytes, tail: bytes, faults: Faults) -> dict[str, Any]:
    """The members around the event list, which ``head`` opens and after whose closing bracket ``tail`` follows.

    Where they are not valid JSON, those that can be read; a file that was cut short has no tail and is not faulty here.
    """
    whole = head + b"]" + (tail if tail.strip() or "truncated" not in faults.counts else b"}")
    try:
        tree, odd = read_json(whole)
    except ValueError:
        if whole.strip(b"\xef\xbb\xbf \t\r\n") in (b"[]", b"[]}"):
            return {}
        faults.note("metadata-damaged", "around the list of events")
        tree, odd = _readable(head, tail)
    if not isinstance(tree, dict):
        return {}
    if odd.numbers or odd.texts:
        faults.note("odd-metadata", "around the list of events", odd.numbers + odd.texts, str(odd))
    tree.pop("traceEvents", None)
    return tree


def _readable(head: bytes, tail: bytes) -> tuple[dict[str, Any], Oddities]:
    """The members that can be read of metadata that are no JSON."""
    odd = Oddities()
    found = {}
    for text in (_LIST.sub("", head.decode("latin-1")), tail.decode("latin-1")):
        for name, value in _members(text):
            with suppress(ValueError):  # nested too deep
                found[name] = plain(value, odd)
    return redecode(found)[0], odd


def _members(text: str) -> Iterator[tuple[str, Any]]:
    """The ``"key": value`` pairs of ``text`` that can be read."""
    position = 0
    while match := _KEY.match(text, position):
        try:
            value, position = _DECODER.raw_decode(text, match.end())
        except (ValueError, RecursionError):
            following = _NEXT_KEY.search(text, match.end())
            if following is None:
                return
            position = following.end()
        else:
            yield match[1], value
