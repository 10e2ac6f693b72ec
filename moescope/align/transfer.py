"""What a collective takes when every rank arrives together, and so how much of a wait was removable.

A rank that waits in an all-to-all already exchanges data with the peers that are there, so the time until the
last peer's arrival overstates what waiting cost. A rank's undisturbed duration is taken to be
``g = alpha + bytes / B``, the bytes being what the fullest port of its own transfers has moved when the last of them
ends (``volume.with_volume``); alpha and B are fitted to the run's own collectives with little arrival skew. Then the
removable wait is ``min(arrival wait, duration - g)``. In reductions and gathers no data moves on until all ranks are
there, so there the whole arrival wait is removable.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from moescope.align.robust import lad_line

FloatArray = npt.NDArray[np.float64]

MAX_SKEW_SHARES = (0.02, 0.05, 0.15)
"""An exchange counts as undisturbed when the arrival skew is at most this share of the last arriver's duration; the
first is taken that leaves enough of them."""
TINY_SHARE = 0.01
"""Exchanges of at most this share of the tier's largest have latency only."""
VARIED_SHARE = 0.05
"""Sizes that spread by at most this share of the largest tell no latency,"""
VARIED_BESIDE_TINY = 0.5
"""nor do they tell it as well as tiny exchanges do when they spread by at most this share."""
MIN_UNDISTURBED = 5
ENVELOPE_QUANTILE = 0.9
UNDISTURBED, ENVELOPE = "undisturbed instances", "upper envelope of disturbed instances"


@dataclass(frozen=True, slots=True)
class TransferModel:
    """``g(x) = alpha_ns + x / bytes_per_ns`` for one tier (collectives within one host, or across hosts)."""

    tier: str
    alpha_ns: float
    bytes_per_ns: float
    """Effective bandwidth of the bottleneck rank, which equals GB/s."""
    residual_ns: float
    num_instances: int
    method: str

    def duration_ns(self, bottleneck_bytes: FloatArray) -> FloatArray:
        """Undisturbed duration, [n]."""
        return self.alpha_ns + bottleneck_bytes / self.bytes_per_ns


def calm(ends: pl.DataFrame) -> pl.DataFrame:
    """The ends that arrival skew does not disturb, with ``method``; tiers with too few exchanges are left out.

    ``ends``: one row per rank and all-to-all with ``instance, tier, paced_bytes, after_ns`` (from the last arrival to
    the rank's end) and ``skew_share`` (last start - first start over the last arriver's duration). The calmest
    exchanges that suffice are taken. Those of hardly any bytes count whatever their skew: nothing of them moves before
    the last arrival.
    """
    usable = ends.filter(pl.col("paced_bytes").is_not_null() & (pl.col("after_ns") > 0))
    is_tiny = pl.col("paced_bytes") <= TINY_SHARE * pl.col("paced_bytes").max().over("tier")
    usable = usable.with_columns(is_tiny=is_tiny)
    parts = []
    for _, rows in usable.group_by(["tier"], maintain_order=True):
        kept, method = _calmest(rows)
        if len(kept):
            parts.append(kept.with_columns(method=pl.lit(method)))
    return pl.concat(parts) if parts else usable.head(0).with_columns(method=pl.lit(""))


def _calmest(rows: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    large = pl.col("instance").filter(~pl.col("is_tiny")).n_unique()
    for limit in MAX_SKEW_SHARES:
        kept = rows.filter((pl.col("skew_share") <= limit) | pl.col("is_tiny"))
        enough = MIN_UNDISTURBED if limit == MAX_SKEW_SHARES[-1] else 2 * MIN_UNDISTURBED
        if kept.select(large).item() >= enough:
            return kept, UNDISTURBED
    if rows.select(large).item() >= 2 * MIN_UNDISTURBED:
        return rows, ENVELOPE
    return rows.head(0), ""


def fit_transfer(calm_ends: pl.DataFrame) -> dict[str, TransferModel]:
    """A model per tier from the run's own all-to-alls. ``calm_ends``: ``calm``."""
    return {
        str(tier): _fit(str(tier), rows, ENVELOPE_QUANTILE if rows["method"][0] == ENVELOPE else 0.5)
        for (tier,), rows in calm_ends.group_by(["tier"], maintain_order=True)
    }


def _fit(tier: str, rows: pl.DataFrame, quantile: float) -> TransferModel:
    x = rows["paced_bytes"].to_numpy().astype(np.float64)
    y = rows["after_ns"].to_numpy().astype(np.float64)
    tiny = rows["is_tiny"].to_numpy()
    alpha, slope = _line(x[~tiny], y[~tiny], quantile, float(np.quantile(y[tiny], quantile)) if tiny.any() else None)
    residual = float(np.median(np.abs(y - alpha - slope * x)))
    num_instances = rows["instance"].n_unique()
    return TransferModel(tier, alpha, 1 / max(slope, 1e-12), residual, num_instances, rows["method"][0])


def _line(x: FloatArray, y: FloatArray, quantile: float, latency_ns: float | None) -> tuple[float, float]:
    """(latency, ns per byte): both fitted where sizes differ, else with the latency that tiny exchanges show."""
    if np.ptp(x) > (VARIED_SHARE if latency_ns is None else VARIED_BESIDE_TINY) * x.max():
        line = lad_line(x, y, quantile)
        if line.intercept >= 0 and line.slope > 0:
            return line.intercept, line.slope
    alpha = latency_ns or 0.0
    return alpha, float(np.quantile(np.maximum(y - alpha, 0.0) / np.maximum(x, 1.0), quantile))
