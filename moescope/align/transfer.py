"""What a collective takes when every rank arrives together, and so how much of a wait was removable.

A rank that waits in an all-to-all already exchanges data with the peers that are there, so the time until the
last peer's arrival overstates what waiting cost. The model of the undisturbed duration is
``g = alpha + bottleneck bytes / B``, the bottleneck being the rank that sends or receives most
(``volume.with_volume``); alpha and B are fitted to the run's own collectives with little arrival skew. Then the
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

MAX_SKEW_SHARE = 0.15
"""An instance counts as undisturbed when the arrival skew is at most this share of the last arriver's duration."""
MIN_UNDISTURBED = 5
ENVELOPE_QUANTILE = 0.9


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


def fit_transfer(instances: pl.DataFrame) -> dict[str, TransferModel]:
    """A model per tier from the run's own all-to-alls; a tier without enough of them is left out.

    ``instances``: one row per all-to-all with ``tier, bottleneck_bytes, span_ns`` (last end - last start) and
    ``skew_share`` (last start - first start over the last arriver's duration).
    """
    models = {}
    usable = instances.filter(pl.col("bottleneck_bytes").is_not_null() & (pl.col("span_ns") > 0))
    for (tier,), rows in usable.group_by(["tier"], maintain_order=True):
        calm = rows.filter(pl.col("skew_share") <= MAX_SKEW_SHARE)
        if len(calm) >= MIN_UNDISTURBED:
            models[str(tier)] = _fit(str(tier), calm, 0.5, "undisturbed instances")
        elif len(rows) >= 2 * MIN_UNDISTURBED:
            models[str(tier)] = _fit(str(tier), rows, ENVELOPE_QUANTILE, "upper envelope of disturbed instances")
    return models


def _fit(tier: str, rows: pl.DataFrame, quantile: float, method: str) -> TransferModel:
    x = rows["bottleneck_bytes"].to_numpy().astype(np.float64)
    y = rows["span_ns"].to_numpy().astype(np.float64)
    if np.ptp(x) <= 0.05 * x.max():
        alpha, slope = 0.0, float(np.quantile(y / np.maximum(x, 1), quantile))
    else:
        line = lad_line(x, y, quantile)
        alpha, slope = max(line.intercept, 0.0), line.slope
        if line.intercept < 0 or slope <= 0:
            alpha, slope = 0.0, float(np.quantile(y / np.maximum(x, 1), quantile))
    residual = float(np.median(np.abs(y - alpha - slope * x)))
    return TransferModel(tier, alpha, 1 / max(slope, 1e-12), residual, len(rows), method)
