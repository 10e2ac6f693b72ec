"""What causes cost a run whose ranks form a pipeline, by playing its collectives again without them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from moescope.attribution.causes import SHARED_BY_ALL
from moescope.attribution.delays import CAUSE, SAME_WORK, Excess
from moescope.attribution.replay import saved_ns
from moescope.attribution.timeline import FloatArray, Timeline

MOST_ALTERNATIVES = 16
"""Played again, the costliest first; the rest cost next to nothing."""


def replayed_costs(
    causes: pl.DataFrame,
    rows: pl.DataFrame,
    lines: Mapping[int, Timeline],
    deviation: FloatArray,
    losses: pl.DataFrame,
    *,
    num_steps: int,
) -> pl.DataFrame:
    """``causes.summarise`` with the costs of each cause and culprit scaled to what the run is shorter by without it.

    ``rows``: ``spans.spans``; ``deviation``: ``delays.excesses``; ``losses``: ``transfers.transfer_losses``. What
    everyone shares is one alternative whoever is at fault. Waits of the pipeline itself stay as they are and come last:
    no fix takes all of them away.
    """
    who = pl.when(~pl.col("cause").is_in(SHARED_BY_ALL)).then("culprit")
    keyed = causes.with_columns(who=who)
    kept = keyed.filter(pl.col("cause") != CAUSE[Excess.PIPELINE])
    totals = kept.group_by("cause", "who", maintain_order=True).agg(before=pl.col("cost_ns").sum())
    totals = totals.filter(pl.col("before") > 0).sort("before", descending=True, maintain_order=True)
    totals = totals.head(MOST_ALTERNATIVES)
    if totals.is_empty():
        return causes
    spans, transfers = (np.zeros((len(totals), len(rows))) for _ in range(2))
    for at, (cause, culprit) in enumerate(totals.select("cause", "who").iter_rows()):
        spans[at] = _shorter_spans(cause, culprit, rows, deviation)
        transfers[at] = _shorter_transfers(cause, culprit, rows, losses)
    saved = np.maximum(saved_ns(rows, lines, spans, transfers), 0.0) / num_steps
    totals = totals.with_columns(factor=pl.Series(saved) / pl.col("before")).drop("before")
    scaled = keyed.join(totals, on=["cause", "who"], how="left", nulls_equal=True, maintain_order="left")
    scaled = scaled.with_columns(pl.col("cost_ns", "transfer_ns") * pl.col("factor").fill_null(1.0))
    of_pipeline = scaled["cause"] == CAUSE[Excess.PIPELINE]
    ordered = scaled.with_columns(of_pipeline=of_pipeline).sort(
        "of_pipeline", "cost_ns", descending=[False, True], maintain_order=True
    )
    return ordered.select(causes.columns)


def _shorter_spans(cause: str, culprit: int | None, rows: pl.DataFrame, deviation: FloatArray) -> FloatArray:
    """[len(rows)] by how much the culprit's spans exceed the median of the rest of its stage, or all spans the mean
    where everyone shares the work."""
    excess = next((excess for excess, name in CAUSE.items() if name == cause), None)
    if excess is None or (culprit is None and cause not in SHARED_BY_ALL):
        return np.zeros(len(rows))
    beyond = rows.select(*SAME_WORK, "rank").with_columns(beyond=pl.Series(deviation[:, excess]))
    if cause in SHARED_BY_ALL:
        return (beyond["beyond"] - beyond.select(pl.col("beyond").mean().over(SAME_WORK)).to_series()).to_numpy()
    others = beyond.filter(pl.col("rank") != culprit).group_by(SAME_WORK).agg(rest=pl.col("beyond").median())
    joined = beyond.join(others, on=SAME_WORK, how="left", maintain_order="left")
    saved = pl.when(pl.col("rank") == culprit).then(pl.col("beyond") - pl.col("rest").fill_null(0.0)).otherwise(0.0)
    return joined.select(saved).to_series().to_numpy()


def _shorter_transfers(cause: str, culprit: int | None, rows: pl.DataFrame, losses: pl.DataFrame) -> FloatArray:
    mine = losses.filter(pl.col("cause") == cause)
    if cause not in SHARED_BY_ALL:
        mine = mine.filter(pl.col("culprit").eq_missing(pl.lit(culprit)))
    by_instance = mine.group_by("instance").agg(pl.col("loss_ns").sum())
    joined = rows.select("instance").join(by_instance, on="instance", how="left", maintain_order="left")
    return joined["loss_ns"].fill_null(0.0).to_numpy()
