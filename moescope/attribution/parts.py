"""The exclusive parts of every rank's step."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from moescope.align.frames import conform
from moescope.attribution.timeline import Timeline

_SCHEMA = {
    "rank": pl.Int64,
    "step": pl.Int64,
    "start_ns": pl.Int64,
    "window_ns": pl.Int64,
    "part": pl.String,
    "ns": pl.Int64,
}


def rank_parts(timelines: Mapping[int, Timeline]) -> pl.DataFrame:
    """``rank, step, start_ns, window_ns, part, ns``: per rank and step ``ns`` sums to ``window_ns`` exactly."""
    frames = []
    for rank, line in sorted(timelines.items()):
        window = line.pieces.group_by("step").agg(
            start_ns=pl.col("start_ns").min(), window_ns=(pl.col("end_ns") - pl.col("start_ns")).sum()
        )
        parts = line.pieces.group_by("step", "part").agg(ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
        frames.append(conform(parts.join(window, on="step").with_columns(rank=pl.lit(rank, pl.Int64)), _SCHEMA))
    return pl.concat(frames).sort("rank", "step", "part") if frames else pl.DataFrame(schema=_SCHEMA)
