"""What comes from outside, made harmless where it enters: regular files, valid text, numbers of 64 bits.

Folders and documents are written by others, and some are damaged or hostile. Whoever lists a folder or decodes a
document does it here, so that no later stage meets a pipe, a lone surrogate or a number that fits no column.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LONGEST_LINE_BYTES = 64 << 20
MAX_DEPTH = 64
"""Levels of lists and objects in a document; what describes a run has fewer than ten."""

MOST_RANKS = 1 << 17
"""Ranks of one job, above any that was ever run: a larger rank or world size is no measured one."""

INT64 = range(-(2**63), 2**63)
_DIGITS_OF_64_BITS = 20
_NUMBERS_OF_64_BITS = range(-(2**63), 2**64)
_SURROGATE = re.compile("[\ud800-\udfff]")


def valid_text(text: str) -> str:
    """``text`` as valid Unicode: bytes of file names that are no UTF-8, and lone surrogates, as visible escapes."""
    return _SURROGATE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def why_not_readable(path: Path) -> str | None:
    """Why there is no use in opening ``path``: it is absent, or no regular file (opening a pipe would hang)."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return error.strerror or str(error)
    except ValueError as error:  # a NUL in the path
        return str(error)
    return None if stat.S_ISREG(mode) else f"it is {_kind(mode)}, not a regular file"


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
    return next((name for holds, name in kinds if holds(mode)), "a device")


@dataclass(frozen=True, slots=True)
class Listing:
    """The files below a folder, sorted; hidden folders are left out, links to folders not followed."""

    files: list[Path] = field(default_factory=list)
    """Regular files, also by link."""
    unreadable: list[tuple[Path, str]] = field(default_factory=list)
    """What is no regular file, and folders that cannot be listed: (path, reason)."""


def list_files(root: Path, suffixes: tuple[str, ...] = ("",)) -> Listing:
    """The files below ``root`` whose names end in one of ``suffixes``, given in lower case."""
    listing = Listing()

    def note(error: OSError) -> None:
        listing.unreadable.append((Path(os.fsdecode(error.filename)), error.strerror or str(error)))

    for where, folders, names in os.walk(root, onerror=note):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (Path(where, name) for name in sorted(names) if name.lower().endswith(suffixes)):
            if reason := why_not_readable(path):
                listing.unreadable.append((path, reason))
            else:
                listing.files.append(path)
    return listing


@dataclass(slots=True)
class Oddities:
    """How much of a document had to be changed."""

    texts: int = 0
    """Texts with lone surrogates, which became U+FFFD."""
    numbers: int = 0
    """Numbers that are not finite or need more than 64 bits, which became null."""

    def __str__(self) -> str:
        parts = [
            (self.texts, "texts that are not valid Unicode"),
            (self.numbers, "numbers beyond 64 bits or not finite"),
        ]
        return " and ".join(f"{count:,} {what}" for count, what in parts if count)


def read_json(data: bytes | str) -> tuple[Any, Oddities]:
    """The document in ``data`` as plain data: valid texts, finite numbers of 64 bits, at most MAX_DEPTH levels.

    Raises ``ValueError`` for what is no JSON, or is nested deeper.
    """
    odd = Oddities()

    def integer(digits: str) -> int | None:
        if len(digits) <= _DIGITS_OF_64_BITS:
            return int(digits)
        odd.numbers += 1
        return None

    def constant(_name: str) -> None:
        odd.numbers += 1

    text = data.decode("utf-8-sig", "surrogatepass") if isinstance(data, bytes) else data
    try:
        found = json.loads(text, parse_int=integer, parse_constant=constant)
        return plain(found, odd), odd
    except RecursionError as error:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels") from error


def plain(value: Any, odd: Oddities, depth: int = 0) -> Any:
    """``value``, decoded from JSON, as plain data; counts in ``odd`` what was changed.

    Raises ``ValueError`` where it is nested deeper than MAX_DEPTH levels.
    """
    if depth >= MAX_DEPTH and isinstance(value, dict | list):
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, str):
        return _counted(value, odd)
    if isinstance(value, dict):
        return {_counted(key, odd): plain(item, odd, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item, odd, depth + 1) for item in value]
    if (isinstance(value, float) and not math.isfinite(value)) or (
        isinstance(value, int) and value not in _NUMBERS_OF_64_BITS
    ):
        odd.numbers += 1
        return None
    return value


def _counted(text: str, odd: Oddities) -> str:
    if text.isascii() or not _SURROGATE.search(text):
        return text
    odd.texts += 1
    return _SURROGATE.sub("\ufffd", text)


def lines(path: Path, longest_bytes: int = LONGEST_LINE_BYTES) -> Iterator[bytes]:
    """The lines of a file that are not blank; one longer than ``longest_bytes`` is cut there, so is no record."""
    with path.open("rb") as file:
        while line := file.readline(longest_bytes):
            if len(line) == longest_bytes and not line.endswith(b"\n"):
                while (more := file.readline(longest_bytes)) and not more.endswith(b"\n"):
                    continue
                yield line
            elif line.strip():
                yield line
