"""Whom a rank waits for in a collective with a root: in a broadcast for the root, in a reduction to one rank only
the root for all.

Traces often record no root. Then it is narrowed down by what happened: nobody leaves a broadcast before its root has
come, and the root of a reduction does not leave before all have. Of a wait only what holds for every possible root is
counted.

A message's receiver waits for its sender. The sender waits for the receiver too where it left after the receiver had
come; a short message leaves before, into a buffer.
"""

from __future__ import annotations

import polars as pl

from moescope.align.collectives import FROM_ROOT, TO_ROOT


def with_roots(rows: pl.DataFrame) -> pl.DataFrame:
    """Sets ``latest_ns, late_rank`` of collectives with a root; the rest as it was.

    ``rows``: matched collectives with ``latest_ns, late_rank`` as of a collective in which all wait for the last.
    """
    comes, goes = pl.col("kind").is_in(list(FROM_ROOT)), pl.col("kind").is_in(list(TO_ROOT))
    if rows.filter(comes | goes).is_empty():
        return _not_into_buffers(rows)
    is_named = pl.col("members").list.get(pl.col("root"), null_on_oob=True) == pl.col("rank")
    is_possible = (
        pl.when(comes)
        .then(pl.col("start_ns") <= pl.col("end_ns").min().over("instance"))
        .otherwise(pl.col("end_ns") >= pl.col("start_ns").max().over("instance"))
    )
    rows = _not_into_buffers(rows)
    rows = rows.with_columns(is_root=is_named.fill_null(is_possible))
    is_root = pl.col("is_root")
    root_begins = pl.col("start_ns").filter(is_root).min().over("instance")
    root = pl.col("rank").filter(is_root).sort_by(pl.col("start_ns").filter(is_root)).first().over("instance")
    waits_for_root = comes & ~is_root & is_root.any().over("instance")
    is_the_root = goes & is_root & (is_root.sum().over("instance") == 1)
    alone = (comes | goes) & ~waits_for_root & ~is_the_root
    return rows.with_columns(
        latest_ns=pl.when(waits_for_root).then(root_begins).when(alone).then("start_ns").otherwise("latest_ns"),
        late_rank=pl.when(waits_for_root).then(root).when(alone).then("rank").otherwise("late_rank"),
    ).drop("is_root")


def _not_into_buffers(rows: pl.DataFrame) -> pl.DataFrame:
    leaves_before = (pl.col("sends") & (pl.col("end_ns") < pl.col("latest_ns"))).fill_null(False)
    return rows.with_columns(
        latest_ns=pl.when(leaves_before).then("start_ns").otherwise("latest_ns"),
        late_rank=pl.when(leaves_before).then("rank").otherwise("late_rank"),
    )
