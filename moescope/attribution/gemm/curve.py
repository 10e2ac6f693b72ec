"""How the time of a product grows with its rows, per weight: ``t = fixed + rows * per_row``, fitted robustly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from moescope.align.robust import lad_line

MIN_POINTS = 4
MIN_SPREAD = 0.1
"""Least spread of the rows, as a share of the largest, from which a line is fitted."""
MAX_CURVES = 32
MAX_POINTS = 64
KEY = ["kind", "dtype", "groups", "n", "k"]


@dataclass(frozen=True, slots=True)
class Curve:
    """Products of one weight [k, n]; ``points``: (rows per group, median kernel time ns, calls).

    The line, by least absolute deviations over the calls, is None where the rows vary too little for one.
    """

    kind: str
    dtype: str
    groups: int
    n: int
    k: int
    fixed_ns: float | None
    ns_per_row: float | None
    residual_ns: float | None
    """Median absolute deviation from the line."""
    points: tuple[tuple[float, float, int], ...]


def curves(calls: pl.DataFrame) -> tuple[Curve, ...]:
    """Curves of the products whose rows are the result's, most time first; at most MAX_CURVES.

    ``calls``: timed products. Gradients of weights, which sum over the rows, are left out.
    """
    shaped = calls.filter(pl.col("divided").is_in(["", "m"]) & (pl.col("rows") * _whole() == pl.col("m")))
    order = shaped.group_by(KEY).agg(pl.col("kernel_ns").sum()).sort(["kernel_ns", *KEY], descending=True)
    chosen = order.head(MAX_CURVES).drop("kernel_ns")
    parts = shaped.join(chosen, on=KEY, how="semi").partition_by(KEY, as_dict=True)
    return tuple(_curve(key, parts[key]) for key in chosen.rows())


def _whole() -> pl.Expr:
    return pl.when(pl.col("divided") == "m").then("groups").otherwise(1)


def _curve(key: tuple[str, str, int, int, int], calls: pl.DataFrame) -> Curve:
    points = calls.group_by("rows").agg(pl.col("kernel_ns").median(), count=pl.len()).sort("rows")
    x, y = calls["rows"].to_numpy(), calls["kernel_ns"].to_numpy().astype(np.float64)
    fixed = slope = residual = None
    if len(points) >= MIN_POINTS and np.ptp(x) >= MIN_SPREAD * x.max():
        line = lad_line(x, y)
        fixed, slope = line.intercept, line.slope
        residual = float(np.median(np.abs(y - fixed - slope * x)))
    kept = points.gather_every(max(-(-len(points) // MAX_POINTS), 1))
    return Curve(*key, fixed, slope, residual, tuple((float(a), float(b), int(c)) for a, b, c in kept.rows()))
