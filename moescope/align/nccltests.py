"""Reading what NVIDIA's nccl-tests print, into the rows of a baseline's own collectives.

A line holds size, count, type, a reduction and root (which some tests leave out), then time, algbw, busbw and wrong out
of place and again in place. Lines that begin with ``#`` are comments; they name the test, the library and the ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moescope.errors import InputUnreadableError

NAMES = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all", "all_to_all": "all_to_all", "alltoallv": "all_to_allv",
    "broadcast": "broadcast", "reduce": "reduce", "sendrecv": "send_recv",
}  # fmt: skip
HEAD_BYTES = 8192
_MARKS = re.compile(r"nccl-tests version|# nThread|Collective test starting|algbw\s+busbw")
_TEST = re.compile(r"#\s*Collective test starting:\s*(\w+?)_perf")
_RANK = re.compile(r"^#\s+Rank\s+(\d+)\b(?:.*?\bon\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*?))?\s*$", re.M)
_VERSION = re.compile(r"NCCL version[:\s]+(\d[\w.+-]*)")
_ROW = re.compile(
    r"^\s*(\d+)\s+(\d+)\s+([a-z]\w*)\s+(?:([a-z]\w*)\s+)?(?:(-?\d+)\s+)?((?:[\d.]+|N/A)(?:\s+(?:[\d.]+|N/A))*)\s*$"
)


def is_nccl_tests(file: Path) -> bool:
    """Whether the file looks like the output of nccl-tests."""
    try:
        with file.open("rb") as stream:
            return _MARKS.search(stream.read(HEAD_BYTES).decode("utf-8", "replace")) is not None
    except OSError:
        return False


def read_nccl_tests(file: Path, name: str | None = None) -> list[dict[str, Any]]:
    """The rows of one output; ``name``: the collective where neither the output nor the file's name says it.

    Raises ``InputUnreadableError`` where nothing is recognised.
    """
    return list(_collectives(_text(file), file, name))


def nccl_tests_document(file: Path) -> dict[str, Any]:
    """One output as a baseline that holds collectives alone, with what its comments say of ranks and hosts."""
    text = _text(file)
    rows = list(_collectives(text, file, None))
    ranks = [
        {"rank": int(rank), "host": host or "", "device": device or ""} for rank, host, device in _RANK.findall(text)
    ]
    version = _VERSION.search(text)
    versions = {"nccl": version[1]} if version else {}
    names = dict.fromkeys(str(rank["host"]) for rank in ranks)
    hosts = [
        {"host": host, "devices": [r["device"] for r in ranks if r["host"] == host], "versions": versions}
        for host in names
    ]
    return {"world_size": len(ranks) or None, "ranks": ranks, "hosts": hosts, "collectives": rows}


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        hint = "Name a file that holds the output of nccl-tests."
        raise InputUnreadableError(f"{file}: {error.strerror}", hint=hint) from error


def _collectives(text: str, file: Path, name: str | None) -> Iterator[dict[str, Any]]:
    named = _TEST.search(text)
    test = name or (named[1] if named else _name_in(file.stem))
    if test is None or test not in NAMES:
        raise InputUnreadableError(
            f"{file} does not say which collective it tests",
            hint=f"Name it in the file's name, or --nccl-tests COLLECTIVE={file}, with one of {', '.join(NAMES)}.",
        )
    num_ranks = len({rank for rank, _, _ in _RANK.findall(text)})
    rows = [row for line in text.splitlines() for row in _rows(line, NAMES[test], num_ranks)]
    if not rows:
        raise InputUnreadableError(f"{file} holds no line of results", hint="It should hold the output of nccl-tests.")
    yield from rows


def _name_in(stem: str) -> str | None:
    """The longest name of a test that the file's name holds."""
    return max((name for name in NAMES if name in stem.lower()), key=len, default=None)


def _rows(line: str, collective: str, num_ranks: int) -> Iterator[dict[str, Any]]:
    match = _ROW.match(line)
    if match is None:
        return
    values = match[6].split()
    for in_place, first in ((False, 0), (True, 4)):
        one = values[first : first + 4]
        if len(one) < 3:
            continue
        time_us, algbw, busbw = (float(text) for text in one[:3])
        yield {
            "collective": collective,
            "in_place": in_place,
            "ranks": num_ranks or None,
            "size_bytes": int(match[1]),
            "count": int(match[2]),
            "dtype": match[3],
            "time_us": time_us,
            "algbw_gb_per_s": algbw,
            "busbw_gb_per_s": busbw,
            "wrong": int(float(one[3])) if len(one) > 3 and one[3] != "N/A" else None,
            "calls": None,
        }
