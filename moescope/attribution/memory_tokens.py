"""How much memory each received token takes on a rank, and at which number of tokens the rank runs out.

A point is one rank's step: the tokens it received (in its fullest microbatch, summed over layers), and its peak of
allocated bytes. Ranks hold different parameters, so where they have several steps each rank's own mean is taken off
both before the slope is fitted; else the ranks' single points share one line. The slope's standard error is that of
least squares; two of them are the range given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from moescope.attribution.timeline import FloatArray

MIN_POINTS = 4
MIN_SPREAD = 0.02
"""Least standard deviation of the tokens, as a share of their mean, from which a slope is fitted."""

POINTS = {"rank": pl.Int64, "step": pl.Int64, "tokens": pl.Float64, "peak_bytes": pl.Int64}


@dataclass(frozen=True, slots=True)
class TokenFit:
    """``error``: standard error of ``bytes_per_token``. ``within_ranks``: fitted to changes between a rank's steps."""

    bytes_per_token: float
    error: float
    residual_bytes: float
    """Root mean square of what the line leaves."""
    num_points: int
    within_ranks: bool


def received_tokens(rank_counts: pl.DataFrame) -> pl.DataFrame:
    """``rank, step, tokens`` of the microbatch in which the rank received most, summed over layers.

    ``rank_counts``: ``load.Counts.rank_counts``.
    """
    per_microbatch = rank_counts.group_by("rank", "step", "microbatch").agg(pl.col("tokens").sum())
    return per_microbatch.group_by("rank", "step").agg(pl.col("tokens").max()).sort("rank", "step")


def token_points(rank_counts: pl.DataFrame, peaks: Mapping[tuple[int, int], int]) -> pl.DataFrame:
    """The columns of POINTS for the ranks and steps that have both; ``peaks``: by (rank, step)."""
    rows = [(rank, step, size) for (rank, step), size in peaks.items()]
    schema = {"rank": pl.Int64, "step": pl.Int64, "peak_bytes": pl.Int64}
    known = pl.DataFrame(rows, schema=schema, orient="row")
    both = received_tokens(rank_counts).join(known, on=["rank", "step"]).sort("rank", "step")
    return both.select(pl.col(name).cast(kind) for name, kind in POINTS.items())


def fit_tokens(points: pl.DataFrame) -> TokenFit | None:
    """The slope of peak over tokens; None where there are too few points, or tokens vary too little, or it is not
    larger than its error."""
    several = points.filter(pl.len().over("rank") >= 2)
    for rows, within in ((several, True), (points, False)):
        fit = _fit(rows, within)
        if fit is not None and fit.bytes_per_token > 2 * fit.error:
            return fit
    return None


def _fit(points: pl.DataFrame, within: bool) -> TokenFit | None:
    if within:
        own = pl.col("tokens", "peak_bytes") - pl.col("tokens", "peak_bytes").mean().over("rank")
        x, y = points.select(own).to_numpy().T if len(points) else (np.zeros(0), np.zeros(0))
        free = len(points) - points["rank"].n_unique() - 1
    else:
        x, y = (points[name].to_numpy().astype(np.float64) for name in ("tokens", "peak_bytes"))
        x, y = x - x.mean() if len(x) else x, y - y.mean() if len(y) else y
        free = len(points) - 2
    mean = float(points["tokens"].mean() or 0.0)  # type: ignore[arg-type]
    if len(x) < MIN_POINTS or free < 1 or float(np.std(x)) < MIN_SPREAD * mean:
        return None
    return _line(x, y, free, within)


def _line(x: FloatArray, y: FloatArray, free: int, within: bool) -> TokenFit:
    square = float(x @ x)
    slope = float(x @ y) / square
    rest = y - slope * x
    variance = float(rest @ rest) / free
    return TokenFit(slope, float(np.sqrt(variance / square)), float(np.sqrt(np.mean(rest**2))), len(x), within)
