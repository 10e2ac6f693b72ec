"""Where the microbatches of a step lie, from the ranges that the hooks record."""

from __future__ import annotations

import polars as pl

from moescope.trace import RankTrace

_RANGE = r"^moescope::L\d+\.mb(\d+)\.[a-z_]+(\.bwd)?$"


def microbatch_spans(trace: RankTrace) -> list[tuple[int, int, int]]:
    """Microbatch number, start and end of each forward pass, in time order; local clock."""
    ranges = trace.events(("start_ns", "dur_ns", "name"), ("annotation",))
    name = pl.col("name").cast(pl.String)
    passes = ranges.with_columns(
        number=name.str.extract(_RANGE, 1).cast(pl.Int64), is_backward=name.str.extract(_RANGE, 2).is_not_null()
    )
    passes = passes.drop_nulls("number").sort("start_ns")
    spans = (
        passes.with_columns(turn=pl.struct("number", "is_backward").rle_id())
        .group_by("turn", "number", "is_backward", maintain_order=True)
        .agg(start=pl.col("start_ns").min(), end=(pl.col("start_ns") + pl.col("dur_ns")).max())
    )
    return spans.filter(~pl.col("is_backward")).select("number", "start", "end").rows()
