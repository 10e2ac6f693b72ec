"""Panels about communication: waits and transfers per rank, who waits for whom, single collectives, clocks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from moescope.views.model import Analysis, Collective
from moescope.views.panels import Column, Empty, Matrix, Panel, Table, step_ns
from moescope.views.text import duration, percent, plural, significant, size

NO_MATCH = Empty(
    "No collective could be matched across ranks, so arrival waits can't be told from transfers.",
    "Record every rank over the same steps with record_shapes=True, so that collectives carry their arguments.",
)
NO_BYTES = Empty(
    "The sizes of the collectives were not recorded.",
    "Record with record_shapes=True, so that collectives carry their sizes.",
)


@dataclass(frozen=True, slots=True)
class RankWaits:
    """One rank's communication per step, over all kinds."""

    rank: int
    removable_ns: float
    overlapped_ns: float
    """Arrival wait that removing would not shorten the collective by."""
    transfer_ns: float
    times_last: float
    uncertainty_ns: int


def rank_waits(analysis: Analysis, step: int | None = None, kind: str | None = None) -> list[RankWaits]:
    """Mean per step over the profiled steps, or one ``step``; all kinds, or one."""
    chosen = [w for w in analysis.waits if (step is None or w.step == step) and (kind is None or w.kind == kind)]
    result = []
    for rank in sorted({w.rank for w in chosen}):
        mine = [w for w in chosen if w.rank == rank]
        num_steps = len({w.step for w in mine})
        removable = sum(w.removable_wait_ns for w in mine) / num_steps
        arrival = sum(w.arrival_wait_ns for w in mine) / num_steps
        transfer = sum(w.transfer_ns for w in mine) / num_steps
        last = sum(w.times_last for w in mine) / num_steps
        bound = max(w.uncertainty_ns for w in mine)
        result.append(RankWaits(rank, removable, arrival - removable, transfer, last, bound))
    return result


def waits_panel(analysis: Analysis, step: int | None = None) -> Panel:
    """Arrival wait and transfer of each rank."""
    key, title, question = "waits", "Waits and transfers", "Do ranks wait for each other, or for the network?"
    rows = rank_waits(analysis, step)
    if not rows:
        return Panel(key, title, question, empty=NO_MATCH)
    columns = (
        Column("rank", "id"),
        Column("kind"),
        Column("steps", "count"),
        Column("arrival wait", "ms"),
        Column("of it removable", "ms"),
        Column("transfer", "ms"),
        Column("times last", "count"),
        Column("uncertainty", "duration"),
    )
    grouped: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0, 0, 0])
    for wait in analysis.waits:
        if step is None or wait.step == step:
            sums = grouped[wait.rank, wait.kind]
            values = (1, wait.arrival_wait_ns, wait.removable_wait_ns, wait.transfer_ns, wait.times_last)
            sums[:5] = [a + b for a, b in zip(sums, values, strict=False)]
            sums[5] = max(sums[5], wait.uncertainty_ns)
    body = tuple(
        (rank, kind.replace("_", " "), n, arrival / n, removable / n, transfer / n, last / n, bound)
        for (rank, kind), (n, arrival, removable, transfer, last, bound) in sorted(grouped.items())
    )
    caption = "Milliseconds per step, also where computation hides them."
    return Panel(key, title, question, _waits_reading(rows), (Table("waits", columns, body, caption),))


def _waits_reading(rows: list[RankWaits]) -> str:
    most = max(rows, key=lambda r: r.removable_ns + r.overlapped_ns)
    last = max(rows, key=lambda r: r.times_last)
    wait = most.removable_ns + most.overlapped_ns
    if wait == 0:
        return "Ranks arrive together: no rank waits for another."
    return (
        f"Rank {most.rank} waits longest for later ranks, {duration(wait)} per step, and transfers "
        f"{duration(most.transfer_ns)}. Rank {last.rank} is most often the last to arrive."
    )


def wait_matrix(analysis: Analysis, most: int = 128) -> Matrix:
    """Waiters (rows) by the ranks they waited for (columns), ns per step; of many, those with the most waiting."""
    waited: dict[int, int] = defaultdict(int)
    caused: dict[int, int] = defaultdict(int)
    for edge in analysis.wait_edges:
        waited[edge.waiter] += edge.wait_ns_per_step
        caused[edge.late] += edge.wait_ns_per_step
    ranks = sorted(waited.keys() | caused.keys())
    rows, columns = (
        tuple(sorted(sorted(ranks, key=lambda rank: (-sums.get(rank, 0), rank))[:most])) for sums in (waited, caused)
    )
    cells = {(e.waiter, e.late): float(e.wait_ns_per_step) for e in analysis.wait_edges}
    values = tuple(tuple(None if w == l_ else cells.get((w, l_), 0.0) for l_ in columns) for w in rows)
    return Matrix("waiting rank", "late rank", rows, columns, values, "duration")


def edges_panel(analysis: Analysis) -> Panel:
    """Who waits for whom."""
    key, title, question = "edges", "Who waits for whom", "Which rank keeps the others waiting?"
    if not analysis.wait_edges:
        if analysis.waits:
            return Panel(key, title, question, empty=Empty("No rank waited for another in the profiled steps.", ""))
        return Panel(key, title, question, empty=NO_MATCH)
    by_late: dict[int, int] = defaultdict(int)
    for edge in analysis.wait_edges:
        by_late[edge.late] += edge.wait_ns_per_step
    total = sum(by_late.values())
    late = max(by_late, key=lambda rank: (by_late[rank], -rank))
    waiters = sum(1 for edge in analysis.wait_edges if edge.late == late)
    share = by_late[late] / total if total else 0.0
    reading = (
        f"Rank {late} keeps {plural(waiters, 'rank')} waiting, {duration(by_late[late])} per step summed over them; "
        f"that is {percent(share)} of all waiting."
    )
    columns = (Column("waiting rank", "id"), Column("late rank", "id"), Column("wait per step", "duration"))
    edges = sorted(analysis.wait_edges, key=lambda e: (-e.wait_ns_per_step, e.waiter, e.late))
    body = tuple((e.waiter, e.late, e.wait_ns_per_step) for e in edges)
    return Panel(key, title, question, reading, (Table("edges", columns, body),))


def collective_bandwidth(collective: Collective) -> float | None:
    """Bytes per second of the busiest member: max(sent, received) over its transfer time."""
    rates = [
        max(m.send_bytes or 0, m.recv_bytes or 0) / m.transfer_ns * 1e9
        for m in collective.by_rank
        if m.transfer_ns > 0 and (m.send_bytes or m.recv_bytes)
    ]
    return max(rates) if rates else None


def transfers_panel(analysis: Analysis) -> Panel:
    """How fast collectives of each kind transfer."""
    key, title, question = "transfers", "Bandwidth", "Are transfers as fast as their size allows?"
    rates: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for collective in analysis.collectives:
        rate = collective_bandwidth(collective)
        volumes = [b for m in collective.by_rank for b in (m.send_bytes, m.recv_bytes) if b is not None]
        if rate is not None:
            rates[collective.kind].append((rate, max(volumes)))
    if not rates:
        return Panel(key, title, question, empty=NO_BYTES if analysis.collectives else NO_MATCH)
    columns = (
        Column("kind"),
        Column("collectives", "count"),
        Column("smallest", "bytes"),
        Column("largest", "bytes"),
        Column("slowest, GB/s", "ratio"),
        Column("median, GB/s", "ratio"),
        Column("fastest, GB/s", "ratio"),
    )
    rows = []
    for kind in sorted(rates):
        speeds = sorted(rate / 1e9 for rate, _ in rates[kind])
        sizes = [num_bytes for _, num_bytes in rates[kind]]
        middle = speeds[len(speeds) // 2]
        rows.append((kind.replace("_", " "), len(speeds), min(sizes), max(sizes), speeds[0], middle, speeds[-1]))
    kind, _, _, largest, slow, middle, fast = max(rows, key=lambda row: row[1])
    reading = (
        f"{kind.capitalize()} of up to {size(largest)} per rank runs at {significant(middle)} GB/s at the median, "
        f"from {significant(slow)} to {significant(fast)} GB/s."
    )
    caption = "Bytes of the busiest member over its transfer time, arrival wait excluded."
    return Panel(key, title, question, reading, (Table("transfers", columns, tuple(rows), caption),))


def collectives_panel(analysis: Analysis, most: int = 200) -> Panel:
    """The collectives that cost most waiting."""
    key, title, question = "collectives", "Collectives", "Which single collectives are the expensive ones?"
    if not analysis.collectives:
        return Panel(key, title, question, empty=NO_MATCH)
    ordered = sorted(
        analysis.collectives, key=lambda c: (-sum(m.arrival_wait_ns for m in c.by_rank), c.group, c.kind, c.sequence)
    )
    columns = (
        Column("group"),
        Column("kind"),
        Column("sequence", "id"),
        Column("step", "id"),
        Column("layer", "id"),
        Column("phase"),
        Column("ranks", "count"),
        Column("last to arrive", "id"),
        Column("wait, all ranks", "duration"),
        Column("longest transfer", "duration"),
        Column("most bytes", "bytes"),
    )
    rows = []
    for c in ordered[:most]:
        volumes = [b for m in c.by_rank for b in (m.send_bytes, m.recv_bytes) if b is not None]
        last = max(c.by_rank, key=lambda m: m.start_ns).rank
        wait = sum(m.arrival_wait_ns for m in c.by_rank)
        transfer = max(m.transfer_ns for m in c.by_rank)
        rows.append((c.group, c.kind.replace("_", " "), c.sequence, c.step, c.layer, c.phase, len(c.by_rank), last,
                     wait, transfer, max(volumes) if volumes else None))  # fmt: skip
    reading = f"{plural(len(ordered), 'collective')} matched across ranks; listed by the waiting they cost."
    notes = (f"The {most:,} most expensive of {len(ordered):,} are listed.",) if len(ordered) > most else ()
    return Panel(key, title, question, reading, (Table("collectives", columns, tuple(rows)),), notes=notes)


def clock_panel(analysis: Analysis) -> Panel:
    """Clock offset of each host with the bracket that contains it."""
    key, title, question = "clock", "Clocks", "How well do the hosts' clocks line up?"
    if not analysis.clock:
        why = "No clock was estimated: there is one rank, or nothing to line ranks up by."
        return Panel(key, title, question, empty=Empty(why, NO_MATCH.how_to_record))
    columns = (
        Column("host"),
        Column("ranks", "count"),
        Column("offset", "duration"),
        Column("bracket, low", "duration"),
        Column("bracket, high", "duration"),
        Column("drift, ppm", "ratio"),
        Column("anchors", "count"),
        Column("method"),
    )
    rows = tuple(
        (c.host, len(c.ranks), c.offset_ns, c.low_ns, c.high_ns, c.drift_ppm, c.num_anchors, c.method)
        for c in analysis.clock
    )
    widest = max(analysis.clock, key=lambda c: c.high_ns - c.low_ns)
    width = widest.high_ns - widest.low_ns
    if len(analysis.clock) == 1:
        reading = "All ranks share one host's clock, so there is nothing to correct."
    else:
        window = step_ns(analysis)
        share = f", {percent(width / window)} of a step" if window else ""
        reading = (
            f"Offsets are known at worst to within {duration(width)} ({widest.host}){share}; "
            "every wait carries that uncertainty."
        )
    return Panel(key, title, question, reading, (Table("clock", columns, rows),))
