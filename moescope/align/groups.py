"""Process groups: who takes part in a collective, and what to call the group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from moescope.trace import RankTrace


def compact(ranks: Sequence[int]) -> str:
    """Ranks as text: ``0-3,8``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def with_members(instances: pl.DataFrame, trace: RankTrace, world: Sequence[int]) -> pl.DataFrame:
    """Adds ``members`` (List(Int64), sorted ranks of the group) and ``group`` (its label) to one rank's collectives.

    Members come from the recorded list of ranks, else from the trace's process-group table, else every known rank.
    """
    table = {name: list(group.ranks) for name, group in trace.groups.items() if group.ranks}
    rows = instances.select("group_name", "group_description", "group_ranks", "group_size").rows()
    members = [_members(row, table, list(world)) for row in rows]
    labels = [_label(row, ranks) for row, ranks in zip(rows, members, strict=True)]
    return instances.with_columns(
        members=pl.Series(members, dtype=pl.List(pl.Int64)), group=pl.Series(labels, dtype=pl.String)
    )


def _members(
    row: tuple[str | None, str | None, list[int] | None, int | None], table: Mapping[str, list[int]], world: list[int]
) -> list[int]:
    name, _, ranks, _ = row
    if ranks:
        return sorted(ranks)
    if name is not None and name in table:
        return sorted(table[name])
    return world


def _label(row: tuple[str | None, str | None, list[int] | None, int | None], members: list[int]) -> str:
    name, description, _, _ = row
    known = description if description and description != "undefined" else name
    return f"{known or 'unnamed'} {compact(members)}"
