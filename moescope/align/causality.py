"""Ranks said to share a clock whose recorded times say otherwise.

No rank ends a synchronising collective with data for every pair before every rank has begun it. Where ranks of one
host break that rule, they do not share a clock: the host names are missing or wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from moescope.align.anchors import waits_for_all

ROUNDING_NS = 2_000
"""Whole microseconds in the trace: a start and an end may each be off by one."""


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Ranks of ``host`` whose collectives could not have happened as recorded on one clock."""

    host: str
    num_instances: int
    """Collectives that end on one rank before another has begun."""
    num_checked: int
    worst_ns: int
    alike: tuple[tuple[int, ...], ...]
    """Ranks that end collectives together, so may share a clock: a guess from their median ends."""


def contradictions(rows: pl.DataFrame, host_of_rank: Mapping[int, str]) -> tuple[Contradiction, ...]:
    """Hosts whose ranks cannot share a clock, by host name. ``rows``: matched collectives on the common clock."""
    host = pl.col("rank").replace_strict(dict(host_of_rank), return_dtype=pl.String)
    shared = rows.filter(waits_for_all()).with_columns(host=host)
    shared = shared.filter(pl.len().over("instance", "host") > 1)
    overlap = shared.group_by("host", "instance").agg(overlap=pl.col("end_ns").min() - pl.col("start_ns").max())
    found = []
    for (name,), mine in overlap.sort("host", "instance").group_by("host", maintain_order=True):
        broken = mine.filter(pl.col("overlap") < -ROUNDING_NS)
        if len(broken):
            worst = -int(broken["overlap"].to_numpy().min())
            alike = _alike(shared.filter(pl.col("host") == name), worst)
            found.append(Contradiction(str(name), len(broken), len(mine), worst, alike))
    return tuple(found)


def _alike(rows: pl.DataFrame, worst_ns: int) -> tuple[tuple[int, ...], ...]:
    """The ranks in order of their median end against the instance's, cut where two are far apart."""
    late = rows.with_columns(late=pl.col("end_ns") - pl.col("end_ns").median().over("instance"))
    ends = late.group_by("rank").agg(pl.col("late").median()).sort("late", "rank")
    cuts = np.flatnonzero(np.diff(ends["late"].to_numpy()) > worst_ns / 2) + 1
    groups = np.split(ends["rank"].to_numpy(), cuts)
    return tuple(sorted(tuple(sorted(map(int, group))) for group in groups))
