"""Repair of one broken JSON object: control characters, stray quotes and backslashes, trailing commas."""

from __future__ import annotations

import json
import re
from typing import Any

_LENIENT = json.JSONDecoder(strict=False, parse_float=str, parse_constant=str)
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_CLOSES = re.compile(r'\s*(?:[:}\]]|,\s*(?:["{\[\-0-9tfnNI]|[}\]])|\Z)')
_TRAILING_COMMA = re.compile(r",(?=\s*[}\]])")


def repair_object(text: str) -> tuple[dict[str, Any], str] | None:
    """The object that ``text`` was meant to be and what was mended; None when it stays unreadable."""
    for mend, how in ((str, "control characters"), (_requote, "quotes, backslashes or commas")):
        try:
            value = _LENIENT.decode(mend(text))
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return value, how
    return None


def _requote(text: str) -> str:
    """Escape quotes that end no string and backslashes that begin no escape; drop trailing commas."""
    out: list[str] = []
    position = 0
    while True:
        quote = text.find('"', position)
        outside = text[position:] if quote < 0 else text[position:quote]
        out.append(_TRAILING_COMMA.sub("", outside))
        if quote < 0:
            return "".join(out)
        string, position = _string(text, quote + 1)
        out.append(string)


def _string(text: str, position: int) -> tuple[str, int]:
    """The string whose first character is at ``position``, escaped anew, with its quotes; and where it ends."""
    out = ['"']
    while position < len(text):
        character = text[position]
        if character == "\\":
            escape = _ESCAPE.match(text, position)
            if escape and not (escape[0] == '\\"' and _CLOSES.match(text, escape.end())):
                out.append(escape[0])
                position = escape.end()
                continue
            out.append("\\\\")
        elif character == '"':
            if _CLOSES.match(text, position + 1):
                return "".join(out) + '"', position + 1
            out.append('\\"')
        else:
            out.append(character)
        position += 1
    return "".join(out), position
