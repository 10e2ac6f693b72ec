"""Repair of one broken JSON object: control characters, stray quotes and backslashes, trailing commas, NaN."""

from __future__ import annotations

import json
import re
from typing import Any

_LENIENT = json.JSONDecoder(strict=False, parse_float=str, parse_constant=str)
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_CLOSES = re.compile(r'[\s\x00-\x1f]*(?:[:}\]]|,[\s\x00-\x1f]*(?:["{\[\-0-9tfnNI]|[}\]])|\Z)')
_SPECIAL = re.compile(r'["\\]')
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_TRAILING_COMMA = re.compile(r",(?=\s*[}\]])")
_SURROGATE = re.compile("[\ud800-\udfff]")


def repair_object(text: str) -> tuple[dict[str, Any], str] | None:
    """The object that ``text`` was meant to be and what was mended; None when it stays unreadable."""
    for mend, how in ((str, "control characters"), (_requote, "quotes, backslashes, commas or control characters")):
        try:
            value = _LENIENT.decode(mend(text))
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return value, how
    return None


def _requote(text: str) -> str:
    """Escape quotes that end no string and backslashes that begin no escape; drop trailing commas, and control
    characters between strings."""
    out: list[str] = []
    position = 0
    while True:
        quote = text.find('"', position)
        outside = text[position:] if quote < 0 else text[position:quote]
        out.append(_TRAILING_COMMA.sub("", _CONTROL.sub(" ", outside)))
        if quote < 0:
            return "".join(out)
        string, position = _string(text, quote + 1)
        out.append(string)


def _string(text: str, position: int) -> tuple[str, int]:
    """The string whose first character is at ``position``, escaped anew, with its quotes; and where it ends."""
    out = ['"']
    while special := _SPECIAL.search(text, position):
        out.append(text[position : special.start()])
        position = special.start()
        if special[0] == "\\":
            escape = _ESCAPE.match(text, position)
            if escape and not (escape[0] == '\\"' and _CLOSES.match(text, escape.end())):
                out.append(escape[0])
                position = escape.end()
                continue
            out.append("\\\\")
        else:
            if _CLOSES.match(text, position + 1):
                return "".join(out) + '"', position + 1
            out.append('\\"')
        position += 1
    return "".join(out) + text[position:], len(text)


def redecode(value: Any) -> tuple[Any, int]:
    """``value`` with strings that were read as Latin-1 read as UTF-8, and how many of them are not valid UTF-8."""
    if isinstance(value, str):
        return _redecode_text(value)
    if isinstance(value, list):
        items = [redecode(item) for item in value]
        return [item for item, _ in items], sum(bad for _, bad in items)
    if isinstance(value, dict):
        keys = [_redecode_text(key) for key in value]
        items = [redecode(item) for item in value.values()]
        pairs = zip(keys, items, strict=True)
        return {key: item for (key, _), (item, _) in pairs}, sum(bad for _, bad in [*keys, *items])
    return value, 0


def _redecode_text(text: str) -> tuple[str, int]:
    if text.isascii():
        return text, 0
    try:
        raw = text.encode("latin-1")
    except UnicodeEncodeError:  # holds a character above U+00FF: it came from a \u escape
        return _SURROGATE.sub("\ufffd", text), int(_SURROGATE.search(text) is not None)
    try:
        return raw.decode("utf-8"), 0
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace"), 1


_EVENT_FIELDS = ("ph", "cat", "name", "pid", "tid", "ts", "dur")
_ARGUMENTS = ("External id", "external id", "device", "stream", "correlation", "bytes")


def plain_fields(event: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """``event`` without the fields whose type no event has, and whether there were any."""
    odd = [key for key in _EVENT_FIELDS if isinstance(event.get(key), list | dict | bool)]
    odd += [key for key in ("ph", "cat") if isinstance(event.get(key), int | float)]
    args = event.get("args")
    if isinstance(args, dict):
        odd_args = [key for key in _ARGUMENTS if isinstance(args.get(key), list | dict | bool)]
        args = {key: value for key, value in args.items() if key not in odd_args}
        return {key: value for key, value in event.items() if key not in odd} | {"args": args}, bool(odd or odd_args)
    odd += [] if args is None else ["args"]
    return {key: value for key, value in event.items() if key not in odd}, bool(odd)
