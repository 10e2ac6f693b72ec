"""The chain of work and transfers, across ranks, that the length of the run's steps hangs on.

Followed backwards from the rank that ends last: in a collective in which a rank was held by a late one, the path goes
over to the late rank at its arrival; else it stays (Boehme, Wolf, de Supinski, Schulz and Geimer, IPDPS 2012). What it
consists of fills the steps. Each of its spans is compared with the median rank's at the same point of the program
(``delays``): what it deviates by is the share of that cause. What even volumes and usual links would save of its
transfers is the share of those causes (``transfers``). The rest is work that any rank would have to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from moescope.align.ranges import IntArray
from moescope.attribution.delays import CAUSE, is_held
from moescope.attribution.timeline import Activity, FloatArray, Timeline

PATH_PARTS = {
    Activity.TOKEN_WORK: "compute",
    Activity.OTHER_COMPUTE: "compute",
    Activity.MEMORY: "memory",
    Activity.HOST: "host",
    Activity.TRANSFER: "transfer",
    Activity.WAIT: "transfer",
    Activity.DEPENDENCY: "dependency",
}
"""What a path consists of, by activity; waits on the path itself are for transfers in progress."""


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """``parts_ns``, ``ranks_ns``: time per step by what was done and on which rank; both sum to ``length_ns``.
    ``causes_ns``: by cause and culprit, signed, what a path without it would be shorter by."""

    length_ns: float
    parts_ns: Mapping[str, float]
    ranks_ns: Mapping[int, float]
    causes_ns: Mapping[tuple[str, int | None], float]
    num_changes: float
    """How often per step the path goes over to another rank."""
    stretches: pl.DataFrame
    """``rank, start_ns, end_ns``: where the path runs on a rank between its collectives, common clock, sorted."""


@dataclass(frozen=True, slots=True)
class _Walk:
    last: int
    """The last row of the rank that ends last."""
    rows: list[int]
    """Rows whose span lies on the path, last first."""
    before: IntArray
    """[rows] the rank's row before each, -1 for its first."""
    transfers: list[tuple[int, int]]
    """(rank, how long its transfer is on the path, ns)."""
    num_changes: int


def critical_path(
    rows: pl.DataFrame,
    spent: FloatArray,
    deviation: FloatArray,
    transfers: pl.DataFrame,
    *,
    lines: Mapping[int, Timeline],
    num_steps: int,
) -> CriticalPath | None:
    """The path through all recorded steps; None without collectives.

    ``rows``, ``spent``: ``spans.spans``; ``deviation``: ``delays.excesses``; ``transfers``: ``transfer_causes``.
    """
    if rows.is_empty():
        return None
    walk = _walk(rows, is_held(rows).to_numpy(), lines)
    rank = rows["rank"].to_numpy()
    by_rank = dict.fromkeys(sorted(lines), 0.0)
    parts = dict.fromkeys(PATH_PARTS.values(), 0.0)
    pieces = [(int(rank[row]), spent[row]) for row in walk.rows]
    pieces.append((int(rank[walk.last]), _after(rows, walk.last, lines[int(rank[walk.last])])))
    for at, activities in pieces:
        for activity, part in PATH_PARTS.items():
            parts[part] += float(activities[activity])
            by_rank[at] += float(activities[activity])
    for at, ns in walk.transfers:
        parts["transfer"] += ns
        by_rank[at] += ns
    return CriticalPath(
        length_ns=sum(parts.values()) / num_steps,
        parts_ns={part: ns / num_steps for part, ns in parts.items()},
        ranks_ns={at: ns / num_steps for at, ns in by_rank.items() if ns > 0},
        causes_ns=_causes(rows, deviation, walk, transfers, num_steps),
        num_changes=walk.num_changes / num_steps,
        stretches=_stretches(rows, walk, lines),
    )


def _walk(rows: pl.DataFrame, held: IntArray, lines: Mapping[int, Timeline]) -> _Walk:
    """Backwards from the rank whose timeline ends last. ``rows`` are in time order, instances together.

    Of collectives that a rank has under way at once, each is on the path until the next one begins.
    """
    rank, start, end = (rows[column].to_numpy() for column in ("rank", "start_ns", "end_ns"))
    blocking, instance = rows["is_blocking"].to_numpy(), rows["instance"].to_numpy()
    late = rows["late_rank"].fill_null(-1).to_numpy()
    at = {(int(i), int(r)): row for row, (i, r) in enumerate(zip(instance, rank, strict=True))}
    before, seen = np.full(len(rank), -1), dict[int, int]()
    for row, who in enumerate(rank.tolist()):
        before[row] = seen.get(who, -1)
        seen[who] = row
    row = seen[max(seen, key=lambda who: int(lines[who].edges_ns[-1]))]
    last, on_path, transfers, changes = row, [], [], 0
    reached = int(lines[int(rank[row])].edges_ns[-1])
    while row >= 0:
        over = at.get((int(instance[row]), int(late[row]))) if held[row] else None
        begins = int(start[row if over is None else over])
        if blocking[row]:
            transfers.append((int(rank[row]), max(0, min(int(end[row]), reached) - begins)))
        reached = min(reached, begins)
        if over is not None:
            row, changes = over, changes + 1
        on_path.append(row)
        row = int(before[row])
    return _Walk(last, on_path, before, transfers, changes)


def _stretches(rows: pl.DataFrame, walk: _Walk, lines: Mapping[int, Timeline]) -> pl.DataFrame:
    """Every span on the path, from the end of the rank's collective before it to the arrival at its own."""
    rank, start = rows["rank"].to_numpy(), rows["start_ns"].to_numpy()
    done = np.where(rows["is_blocking"].to_numpy(), rows["end_ns"].to_numpy(), start)
    first = {at: int(line.edges_ns[0]) for at, line in lines.items()}
    found = [
        (int(rank[row]), int(done[at]) if (at := walk.before[row]) >= 0 else first[int(rank[row])], int(start[row]))
        for row in walk.rows
    ]
    last = int(rank[walk.last])
    found.append((last, int(done[walk.last]), int(lines[last].edges_ns[-1])))
    schema = {"rank": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}
    return pl.DataFrame(found, schema, orient="row").sort("rank", "start_ns")


def _after(rows: pl.DataFrame, last: int, line: Timeline) -> FloatArray:
    """[activities] time that a rank spent after its last collective."""
    begins = rows["end_ns" if rows["is_blocking"][last] else "start_ns"].to_numpy()[[last]]
    return np.asarray(line.spent_ns(np.minimum(begins, line.edges_ns[-1]), line.edges_ns[-1:])[0])


def _causes(
    rows: pl.DataFrame, deviation: FloatArray, walk: _Walk, transfers: pl.DataFrame, num_steps: int
) -> dict[tuple[str, int | None], float]:
    """By cause and culprit, ns per step: signed deviations of the path's spans, and what its transfers lost."""
    rank = rows["rank"].to_list()
    found: dict[tuple[str, int | None], float] = {}
    for row in walk.rows:
        for excess, cause in CAUSE.items():
            key = cause, rank[row]
            found[key] = found.get(key, 0.0) + float(deviation[row, excess]) / num_steps
    for cause, culprit, lost in transfers.select("cause", "culprit", "transfer_ns").rows():
        found[cause, culprit] = found.get((cause, culprit), 0.0) + lost
    return {key: ns for key, ns in found.items() if abs(ns) >= 1}
