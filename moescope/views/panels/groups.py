"""Panels about who communicates with whom: each group's waits, transfers and bandwidth, and stragglers over time."""

from __future__ import annotations

import math
from collections import defaultdict
from statistics import median

from moescope.views.links import waiting_ns
from moescope.views.model import Analysis, Collective
from moescope.views.panels import Column, Matrix, Panel, Table
from moescope.views.panels.comm import NO_MATCH
from moescope.views.text import duration, percent, plural

MOST_TIMES, MOST_STRAGGLERS = 48, 64


def last_rank(collective: Collective) -> int:
    """The rank that arrived last."""
    return max(collective.by_rank, key=lambda member: member.start_ns).rank


def groups_panel(analysis: Analysis) -> Panel:
    """What every group of ranks waited and transferred, by kind of collective."""
    key, title = "groups", "Groups"
    question = "Which group's collectives wait, and how fast are they once all have arrived?"
    if not analysis.collectives:
        return Panel(key, title, question, empty=NO_MATCH)
    sorted_out: dict[tuple[str, str, str], list[Collective]] = defaultdict(list)
    for one in analysis.collectives:
        sorted_out[one.group, one.kind, one.tier].append(one)
    num_steps = max(1, len(analysis.steps))
    rows = []
    for (group, kind, tier), some in sorted_out.items():
        rates = [one.busbw_gb_per_s for one in some if one.busbw_gb_per_s is not None]
        transfer = sum(max(member.transfer_ns for member in one.by_rank) for one in some)
        ranks = {member.rank for one in some for member in one.by_rank}
        rows.append((group, kind.replace("_", " "), tier, len(ranks), len(some), sum(map(waiting_ns, some)) / num_steps,
                     transfer / num_steps, median(rates) if rates else None))  # fmt: skip
    rows.sort(key=lambda row: -row[5])
    columns = (
        Column("group"),
        Column("kind"),
        Column("tier"),
        Column("ranks", "count"),
        Column("collectives", "count"),
        Column("wait per step, all ranks", "duration"),
        Column("transfer per step", "duration"),
        Column("median bus bandwidth, GB/s", "ratio"),
    )
    first, total = rows[0], sum(row[5] for row in rows)
    reading = f"{plural(len({row[0] for row in rows}), 'group')}; most is waited in {first[1]} of {first[0]}"
    reading += f" ({first[2]})" if first[2] else ""
    reading += f", {duration(first[5])} per step, summed over its ranks"
    reading += f" ({percent(first[5] / total)} of all waiting)." if total else "."
    return Panel(key, title, question, reading, (Table("groups", columns, tuple(rows)),))


def straggler_matrix(analysis: Analysis) -> Matrix:
    """Ranks (rows) by time (columns): how long the others waited for the rank in collectives that ended there."""
    begin = min((member.start_ns for one in analysis.collectives for member in one.by_rank), default=0)
    ends = [max(member.start_ns for member in one.by_rank) - begin for one in analysis.collectives]
    width = _round_width((max(ends, default=0) + 1) / MOST_TIMES)
    waited: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for one, end in zip(analysis.collectives, ends, strict=True):
        waited[last_rank(one)][end // width] += waiting_ns(one)
    worst = sorted(waited, key=lambda rank: (-sum(waited[rank].values()), rank))[:MOST_STRAGGLERS]
    times = range(max(ends, default=0) // width + 1)
    values = tuple(tuple(waited[rank].get(time) for time in times) for rank in sorted(worst))
    names = tuple(f"{time * width / 1e6:.4g}" for time in times)
    return Matrix("rank", "ms", tuple(sorted(worst)), names, values, "duration")


def _round_width(least_ns: float) -> int:
    """The smallest of 1, 2, 5, 10, 20, ... ns that is at least ``least_ns``."""
    power = int(10.0 ** max(0, math.floor(math.log10(max(least_ns, 1.0)))))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least_ns)


def stragglers_panel(analysis: Analysis) -> Panel:
    """Which rank the others waited for, and when."""
    key, title, question = "stragglers", "Stragglers over time", "Is it always the same rank that is late?"
    late = [one for one in analysis.collectives if waiting_ns(one) > 0]
    if not late:
        return Panel(key, title, question, empty=NO_MATCH)
    times: dict[int, int] = defaultdict(int)
    caused: dict[int, int] = defaultdict(int)
    for one in late:
        times[last_rank(one)] += 1
        caused[last_rank(one)] += waiting_ns(one)
    first = max(caused, key=lambda rank: (caused[rank], -rank))
    total = sum(caused.values())
    reading = (
        f"Rank {first} is last in {times[first]:,} of {plural(len(late), 'collective')} with waits; the others wait "
    )
    reading += f"{duration(caused[first])} for it in all ({percent(caused[first] / total)} of the waiting)."
    columns = (Column("rank", "id"), Column("times last", "count"), Column("waited for it, all ranks", "duration"))
    rows = tuple((rank, times[rank], caused[rank]) for rank in sorted(caused, key=lambda rank: -caused[rank]))
    return Panel(key, title, question, reading, (Table("stragglers", columns, rows),))
