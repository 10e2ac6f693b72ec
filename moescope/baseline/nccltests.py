"""Reading what NVIDIA's nccl-tests print, into the rows of a baseline's own collectives.

A line holds size, count, type, a reduction and root (which some tests leave out), then time, algbw, busbw and wrong out
of place and again in place. Lines that begin with ``#`` are comments; one of them may name the test.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moescope.baseline.plan import PlanError

NAMES = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all", "all_to_all": "all_to_all", "alltoallv": "all_to_allv",
    "broadcast": "broadcast", "reduce": "reduce", "sendrecv": "send_recv",
}  # fmt: skip
_TEST = re.compile(r"#\s*Collective test starting:\s*(\w+?)_perf")
_RANK = re.compile(r"#\s+Rank\s+(\d+)\b")
_ROW = re.compile(
    r"^\s*(\d+)\s+(\d+)\s+([a-z]\w*)\s+(?:([a-z]\w*)\s+)?(?:(-?\d+)\s+)?((?:[\d.]+|N/A)(?:\s+(?:[\d.]+|N/A))*)\s*$"
)


def read_nccl_tests(file: Path, name: str | None = None) -> list[dict[str, Any]]:
    """The rows of one output; ``name``: the collective where the output does not say it.

    Raises ``PlanError`` where nothing is recognised.
    """
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise PlanError(f"{file}: {error.strerror}", hint="Name a file that holds the output of nccl-tests.") from error
    named = _TEST.search(text)
    test = name or (named[1] if named else None)
    if test is None or test not in NAMES:
        raise PlanError(
            f"{file} does not say which collective it tests",
            hint=f"Name it: --nccl-tests COLLECTIVE={file}, with one of {', '.join(NAMES)}.",
        )
    num_ranks = len(set(_RANK.findall(text)))
    rows = [row for line in text.splitlines() for row in _rows(line, NAMES[test], num_ranks)]
    if not rows:
        raise PlanError(f"{file} holds no line of results", hint="It should hold the output of nccl-tests.")
    return rows


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
