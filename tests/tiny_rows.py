"""Collectives as the aligner takes them, one row per rank, with defaults for what a test does not care about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from moescope.align.instances import SCHEMA

ROW_BYTES = 8
LISTS = {"rank": pl.Int64, "window": pl.Int64, "step": pl.Int64, "members": pl.List(pl.Int64), "group": pl.String}


def collective(
    rank: int,
    start: int,
    end: int,
    *,
    kind: str = "all_to_all",
    members: Sequence[int] = (0, 1),
    sent: Sequence[int] | None = None,
    received: Sequence[int] | None = None,
    size: int | None = None,
    **rest: Any,
) -> dict[str, Any]:
    """One rank's part in a collective: ``sent`` and ``received`` rows per peer, or ``size`` bytes each way."""
    own = {"rank": rank, "window": 0, "step": 0, "members": sorted(members), "start_ns": start, "end_ns": end}
    sizes = {
        "send_bytes": sum(sent) * ROW_BYTES if sent is not None else size,
        "recv_bytes": sum(received) * ROW_BYTES if received is not None else size,
        "in_splits": None if sent is None else list(sent),
        "out_splits": None if received is None else list(received),
    }
    names = {"kind": kind, "dtype": "Float", "group_name": "1", "group": f"g {sorted(members)}"}
    return dict.fromkeys(SCHEMA) | own | sizes | names | rest


def table(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Rows in the order given, events numbered."""
    numbered = [row | {"event": index} for index, row in enumerate(rows)]
    return pl.DataFrame(numbered, schema={**SCHEMA, **LISTS})


def exchange(
    starts: dict[int, int], end: int | dict[int, int], rows: Sequence[Sequence[int]], **rest: Any
) -> list[dict[str, Any]]:
    """An all-to-all of all ranks in ``starts``: ``rows[i][j]`` rows go from the i-th member to the j-th."""
    members = sorted(starts)
    return [
        collective(
            rank,
            start,
            end[rank] if isinstance(end, dict) else end,
            members=members,
            sent=rows[members.index(rank)],
            received=[row[members.index(rank)] for row in rows],
            **rest,
        )
        for rank, start in starts.items()
    ]


def reduction(starts: dict[int, int], end: int | dict[int, int], **rest: Any) -> list[dict[str, Any]]:
    """An all-reduce of all ranks in ``starts``."""
    return [
        collective(
            rank, start, end[rank] if isinstance(end, dict) else end, kind="all_reduce", members=list(starts), **rest
        )
        for rank, start in starts.items()
    ]
