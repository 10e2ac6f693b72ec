"""Which rank and which window each file is: ranks from content, then name; windows by time."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from moescope.errors import InputUnreadableError
from moescope.trace.identity import rank_from_name, worker_of
from moescope.trace.model import Problem
from moescope.trace.ranktrace import RankTrace, from_metadata
from moescope.trace.store import Entry

Stored = tuple[dict[str, Any], Entry]


def with_ranks(traces: list[Stored], regex: re.Pattern[str] | None, problems: list[Problem]) -> list[RankTrace]:
    """Give every trace its rank; those that have none are left out with a problem.

    Raises :class:`InputUnreadableError` when no trace of several tells its rank.
    """
    named, nameless = [], []
    for metadata, entry in traces:
        rank = metadata["rank"]
        if rank is None:
            rank = rank_from_name(metadata["file"], regex)
        if rank is None:
            nameless.append((metadata, entry))
        else:
            named.append(from_metadata(metadata, entry, rank))
    return named + _without_rank(nameless, bool(named), problems)


def _without_rank(nameless: list[Stored], others: bool, problems: list[Problem]) -> list[RankTrace]:
    if not nameless:
        return []
    one_process = len({worker_of(metadata["file"]) for metadata, _ in nameless}) == 1
    if one_process and not others:
        return [from_metadata(metadata, entry, 0) for metadata, entry in nameless]
    names = [metadata["file"] for metadata, _ in nameless]
    if not others:
        raise InputUnreadableError(
            f"no rank in the content or the name of {len(names)} traces, such as {names[0]}",
            hint=r"say where the rank is in the path: --rank-regex 'gpu(\d+)'",
            code="ranks-unknown",
        )
    what = "neither its content nor its name tells the rank"
    problems.extend(Problem(name, None, what, "left out", code="rank-unknown") for name in names)
    return []


def number_windows(traces: list[RankTrace], problems: list[Problem]) -> list[RankTrace]:
    """Number each rank's windows in time; of files that claim one rank and overlap in time keep the largest."""
    kept: list[RankTrace] = []
    for trace in sorted(traces, key=lambda t: (t.rank, -t.num_events, t.file)):
        rival = next((k for k in kept if k.rank == trace.rank and _overlap(k, trace)), None)
        if rival is None:
            kept.append(trace)
        else:
            problems.append(_duplicate(trace, rival))
    kept.sort(key=lambda t: (t.rank, t.start_ns, t.file))
    for before, trace in pairwise(kept):
        trace.window = before.window + 1 if before.rank == trace.rank else 0
    return kept


def _duplicate(trace: RankTrace, rival: RankTrace) -> Problem:
    return Problem(
        trace.file,
        trace.rank,
        f"claims rank {trace.rank} at the same time as {rival.file}",
        f"left out ({trace.num_events:,} events); {rival.file} is kept ({rival.num_events:,} events)",
        code="duplicate-rank",
    )


def _overlap(a: RankTrace, b: RankTrace) -> bool:
    return a.start_ns < b.end_ns and b.start_ns < a.end_ns
