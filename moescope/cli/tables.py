"""The tables of ``moescope analyze``: every rank of a small run, the ranks that matter of a large one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest

from rich.table import Table
from rich.text import Text

from moescope.cli.text import printable
from moescope.views.model import Analysis
from moescope.views.text import count, duration, milliseconds, percent, ranges, ratio

MAX_RANKS = 12
"""A run of up to this many ranks is shown in full."""
MAX_WAIT_ROWS = 24
"""Rows of ranks and kinds of collectives, likewise."""
NUM_EXTREMES = 4
"""Of a larger one: how many ranks from either end."""
MAX_ROWS = 8
"""Of hosts and layers."""

COLUMNS: tuple[tuple[str, Callable[[str], bool]], ...] = (
    ("experts", lambda part: part == "compute.expert_gemm"),
    ("attention", lambda part: part == "compute.attention"),
    ("other\ncompute", lambda part: part.startswith("compute.")),
    ("a2a\nwait", lambda part: part.startswith("comm.all_to_all.wait")),
    ("a2a\ntransfer", lambda part: part.startswith("comm.all_to_all.")),
    ("other\nwait", lambda part: part.startswith("comm.") and ".wait_" in part),
    ("other\ntransfer", lambda part: part.startswith("comm.")),
    ("memory", lambda part: part.startswith("memory.")),
    ("idle", lambda part: part.startswith("idle.")),
    ("rest", bool),
)
"""Heading and test of each column; a part belongs to the first whose test holds, so a row sums to the step."""


def new_table(*headings: str, left: Sequence[int] = (0,)) -> Table:
    """Return an empty table without lines; the columns in ``left`` are text, the others numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    for position, heading in enumerate(headings):
        number = position not in left
        table.add_column(heading, justify="right" if number else "left", overflow="fold", no_wrap=number)
    return table


def grouped(parts_ns: Mapping[str, float]) -> dict[str, float]:
    """Sum the parts of one step by the columns of the table."""
    sums = {heading: 0.0 for heading, _ in COLUMNS}
    for part, ns in parts_ns.items():
        sums[next(heading for heading, belongs in COLUMNS if belongs(part))] += ns
    return sums


def mean_by_rank(analysis: Analysis) -> dict[int, dict[str, float]]:
    """Return per rank the columns' means over its steps, with ``step`` for the window."""
    sums: dict[int, dict[str, float]] = {}
    num_steps: dict[int, int] = defaultdict(int)
    for row in analysis.ranks:
        total = sums.setdefault(row.rank, defaultdict(float))
        num_steps[row.rank] += 1
        for heading, ns in {"step": float(row.window_ns), **grouped(row.parts_ns)}.items():
            total[heading] += ns
    return {rank: {k: v / num_steps[rank] for k, v in total.items()} for rank, total in sorted(sums.items())}


def waiting(row: Mapping[str, float]) -> float:
    """Return how long a rank of :func:`mean_by_rank` waits for others."""
    return row["a2a\nwait"] + row["other\nwait"]


def ranks_to_show(means: Mapping[int, Mapping[str, float]], named: Iterable[int]) -> list[int]:
    """Return all ranks of a small run; of a large one those named in findings, the latest and the longest waiting."""
    if len(means) <= MAX_RANKS:
        return list(means)
    by_wait = sorted(means, key=lambda rank: waiting(means[rank]))
    chosen = dict.fromkeys([*(rank for rank in named if rank in means)][:NUM_EXTREMES])
    chosen |= dict.fromkeys([*by_wait[:NUM_EXTREMES], *by_wait[-NUM_EXTREMES:]])
    return sorted(chosen)


def parts_table(analysis: Analysis) -> Table | None:
    """Return the step of each rank by part, as means over the profiled steps, ``None`` without steps."""
    means = mean_by_rank(analysis)
    if not means:
        return None
    headings = [heading for heading, _ in COLUMNS if heading != "rest" or any(row["rest"] for row in means.values())]
    table = new_table("rank", "step", *headings)
    shown = ranks_to_show(means, (finding.rank for finding in analysis.findings if finding.rank is not None))
    for rank in shown:
        table.add_row(str(rank), *(milliseconds(means[rank][heading]) for heading in ("step", *headings)))
    if len(means) > 1:
        table.add_section()
        for name, over in (("mean", _mean), ("min", min), ("max", max)):
            values = (over([row[heading] for row in means.values()]) for heading in ("step", *headings))
            table.add_row(f"{name}", *(milliseconds(value) for value in values), style="dim")
    if len(shown) < len(means):
        table.caption = Text(f"{len(shown)} of {len(means)} ranks: named in the verdict, waiting least, waiting most")
    return table


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def waits_table(analysis: Analysis) -> Table | None:
    """Return per rank and kind of collective what it waited and transferred, ``None`` without collectives."""
    if not analysis.waits:
        return None
    num_steps = max(1, len({wait.step for wait in analysis.waits}))
    sums: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0, 0])
    for wait in analysis.waits:
        values = (wait.arrival_wait_ns, wait.removable_wait_ns, wait.transfer_ns, wait.times_last, wait.uncertainty_ns)
        sums[wait.rank, wait.kind] = [a + b for a, b in zip(sums[wait.rank, wait.kind], values, strict=True)]
    rows = sorted(sums.items(), key=lambda item: (-item[1][0], item[0]))
    if len(rows) > MAX_WAIT_ROWS:
        latest = [row for row in sorted(rows, key=lambda row: (-row[1][3], row[0]))[:NUM_EXTREMES] if row[1][3]]
        rows = list(dict(rows[:NUM_EXTREMES] + latest).items())
    longest = _waited_for(analysis)
    table = new_table(
        "rank", "kind", "arrival wait", "removable", "transfer", "last to arrive", "±", "waits for", left=(1, 7)
    )
    for (rank, kind), (arrival, removable, transfer, last_times, uncertainty) in rows:
        table.add_row(
            str(rank),
            printable(kind),
            *(milliseconds(value / num_steps) for value in (arrival, removable, transfer)),
            f"{count(last_times / num_steps)}x",
            duration(uncertainty / num_steps),
            longest.get((rank, kind), ""),
        )
    if len(rows) < len(sums):
        table.caption = Text(f"{len(rows)} of {len(sums)} rows: the longest waits, and who arrives last most often")
    return table


def _waited_for(analysis: Analysis) -> dict[tuple[int, str], str]:
    """Return for each rank and kind of collective the rank it waits for most there, with how long per step."""
    waited: dict[tuple[int, str], Counter[int]] = defaultdict(Counter)
    for collective in analysis.collectives:
        if collective.by_rank:
            late = max(collective.by_rank, key=lambda member: member.start_ns).rank
            for member in collective.by_rank:
                waited[member.rank, collective.kind][late] += member.arrival_wait_ns
    num_steps = max(1, len(analysis.steps))
    longest = {place: ranks.most_common(1)[0] for place, ranks in waited.items()}
    return {place: f"rank {late}, {milliseconds(ns / num_steps)}" for place, (late, ns) in longest.items() if ns > 0}


def clock_table(analysis: Analysis) -> Table | None:
    """Return each host's clock with the bracket around its offset, ``None`` where nothing was aligned."""
    if not analysis.clock:
        return None
    table = new_table("host", "ranks", "offset", "certain within", "drift", "anchors", "method", left=(0, 1, 6))
    for clock in analysis.clock[:MAX_ROWS]:
        table.add_row(
            printable(clock.host or "not named"),
            ranges(clock.ranks),
            f"{clock.offset_ns / 1e3:,.3f} µs",
            f"-{duration(clock.offset_ns - clock.low_ns)} +{duration(clock.high_ns - clock.offset_ns)}",
            f"{clock.drift_ppm:.2f} ppm",
            count(clock.num_anchors),
            printable(clock.method),
        )
    if len(analysis.clock) > MAX_ROWS:
        table.caption = Text(f"{MAX_ROWS} of {len(analysis.clock)} hosts")
    return table


def path_table(analysis: Analysis) -> Table | None:
    """Return what the critical path consists of and what it would be shorter by without each cause."""
    path = analysis.critical_path
    if path is None:
        return None
    table = new_table("part", "ms/step", "of it", "cause", "rank", "ms/step", "of it", left=(0, 3))
    parts = sorted(path.parts_ns.items(), key=lambda item: -item[1])
    rest = path.length_ns - sum(cause.ns_per_step for cause in path.causes)
    shown = [(c.cause.replace("_", " "), "" if c.rank is None else str(c.rank), c.ns_per_step) for c in path.causes]
    causes = [("what any rank would do", "", rest), *shown[:MAX_ROWS]]
    for part, cause in zip_longest([item for item in parts if item[1]], causes):
        left = (part[0], milliseconds(part[1]), percent(part[1] / path.length_ns)) if part else ("", "", "")
        right = (cause[0], cause[1], milliseconds(cause[2]), percent(cause[2] / path.length_ns)) if cause else ("",) * 4
        table.add_row(*left, *right)
    most = ", ".join(
        f"rank {one.rank} {percent(one.ns_per_step / path.length_ns)}" for one in path.ranks[:NUM_EXTREMES]
    )
    table.caption = Text(f"on {most}{', ...' if len(path.ranks) > NUM_EXTREMES else ''}")
    return table


def load_table(analysis: Analysis) -> Table | None:
    """Return the load of the MoE layers, the costliest first where there are many; ``None`` without counts."""
    if analysis.load is None:
        return None
    layers = analysis.load.layers
    if len(layers) > MAX_ROWS:
        worst = sorted(layers, key=lambda layer: (-(layer.cost_ns_per_step or 0), -layer.maxvio_rank))[:MAX_ROWS]
        layers = tuple(sorted(worst, key=lambda layer: layer.layer))
    headings = (
        "layer",
        "MaxVio\nranks",
        "random",
        "MaxVio\nexperts",
        "random",
        "entropy",
        "hottest\nrank",
        "dead\nexperts",
    )
    table = new_table(*headings, "dropped", "uneven\nms/step", left=())
    for layer in layers:
        table.add_row(
            str(layer.layer),
            *map(ratio, (layer.maxvio_rank, layer.maxvio_rank_floor, layer.maxvio_expert, layer.maxvio_expert_floor)),
            ratio(layer.entropy),
            str(layer.hottest_rank),
            count(layer.num_dead_experts),
            percent(layer.dropped_share),
            milliseconds(layer.cost_ns_per_step),
        )
    if len(layers) < len(analysis.load.layers):
        table.caption = Text(f"{len(layers)} of {len(analysis.load.layers)} layers: the costliest")
    return table
