"""Which ranks share a host, and so a clock: as the user says, else as the traces do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import polars as pl

from moescope.align.causality import Contradiction, contradictions
from moescope.align.context import launches
from moescope.align.groups import with_members
from moescope.align.instances import instances_of
from moescope.align.match import match
from moescope.align.steps import step_windows
from moescope.errors import DataMissingError
from moescope.trace import RankTrace

HostGroups = Sequence[Sequence[int]]

MOST_ASSUMED_MEMBERS = 4096
"""A list of members goes with every collective, so of more ranks it would not fit in memory."""


def hosts_of(traces: Sequence[RankTrace], hosts: HostGroups | None) -> dict[int, str]:
    """The host of every rank: as the user grouped them, else as recorded; ranks without a name share one.

    Raises ``DataMissingError`` when ``hosts`` names no rank that has a trace.
    """
    if hosts is None:
        return {trace.rank: trace.host or "" for trace in traces}
    given = {rank: f"host{index}" for index, ranks in enumerate(hosts) for rank in ranks}
    present = [trace.rank for trace in traces]
    if not set(given) & set(present):
        raise DataMissingError(
            f"--hosts names ranks {sorted(given)[:8]}, but the traces are of ranks {sorted(set(present))[:8]}",
            hint="Group the ranks that are there, for example --hosts 0-3,4-7.",
            code="hosts-unknown",
        )
    return {rank: given.get(rank, "other") for rank in present}


def all_ranks(traces: Sequence[RankTrace]) -> list[int]:
    """Every rank of the job: as many as the traces say, and at least those that are there."""
    recorded = max((trace.world_size or 0 for trace in traces), default=0)
    highest = max((trace.rank for trace in traces), default=-1)
    return list(range(max(recorded, highest + 1)))


def assumed_members(traces: Sequence[RankTrace]) -> list[int]:
    """Who takes part in a collective whose group nothing describes: all ranks; of a huge job those with traces."""
    world = all_ranks(traces)
    return world if len(world) <= MOST_ASSUMED_MEMBERS else sorted({trace.rank for trace in traces})


def contradicted_hosts(traces: Sequence[RankTrace], host_of_rank: Mapping[int, str]) -> tuple[Contradiction, ...]:
    """The hosts whose ranks cannot share a clock, without an analysis: collectives are matched, and no more."""
    ranks_of = Counter(host_of_rank[rank] for rank in {trace.rank for trace in traces})
    world = assumed_members(traces)
    shared = [_instances(trace, world) for trace in traces if ranks_of[host_of_rank[trace.rank]] > 1]
    return contradictions(match(pl.concat(shared)).rows, host_of_rank) if shared else ()


def _instances(trace: RankTrace, world: Sequence[int]) -> pl.DataFrame:
    events = trace.events()
    launch = launches(events)
    found = instances_of(trace, events, launch, step_windows(events, launch["launch_ns"]))
    return with_members(found, trace, world)
