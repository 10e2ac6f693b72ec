"""Charged waits summed up: what each cause costs a step, by rank and layer."""

from __future__ import annotations

import polars as pl

SHARED_BY_ALL = ("expert_load",)
"""Removing these lets everyone run at the mean: their cost is the wait averaged over all ranks. Removing another
cause lets the culprit run like the rest, so its cost is the wait averaged over the other ranks."""


def summarise(charges: pl.DataFrame, num_ranks: int, num_steps: int) -> pl.DataFrame:
    """``cause, culprit, layer, charged_ns, cost_ns``: per step, largest cost first.

    ``charges``: ``delays.charge_waits``. ``charged_ns`` is summed over the waiting ranks, ``cost_ns`` is what the step
    would be shorter by.
    """
    if charges.is_empty():
        return charges.select("cause", "culprit", "layer", "charged_ns", "cost_ns")
    divisor = pl.when(pl.col("cause").is_in(SHARED_BY_ALL)).then(num_ranks).otherwise(max(num_ranks - 1, 1))
    return (
        charges.group_by("cause", "culprit", "layer")
        .agg(pl.col("charged_ns").sum() / num_steps, pl.col("cost_ns").sum() / num_steps)
        .with_columns(pl.col("cost_ns") / divisor)
        .sort(["cost_ns", "cause", "culprit", "layer"], descending=[True, False, False, False], nulls_last=True)
    )
