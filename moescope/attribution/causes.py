"""Charged waits and transfer losses summed up: what each cause costs a step, by rank and layer."""

from __future__ import annotations

import polars as pl

from moescope.align.frames import conform
from moescope.attribution.transfers import SCHEMA

SHARED_BY_ALL = ("expert_load",)
"""Removing these lets everyone run at the mean: their cost is the wait averaged over all ranks. Removing another
cause lets the culprit run like the rest, so its cost is the wait averaged over the other ranks."""


def summarise(charges: pl.DataFrame, transfers: pl.DataFrame, num_ranks: int, num_steps: int) -> pl.DataFrame:
    """``cause, culprit, layer, charged_ns, cost_ns``: per step, largest cost first.

    ``charges``: ``delays.charge_waits``; ``transfers``: ``transfers.transfer_causes``. ``charged_ns`` is summed over the waiting
    ranks, ``cost_ns`` is what the step would be shorter by. Where slow links were found, the waits that other groups
    spent for them are the same time seen from elsewhere, and cost nothing more.
    """
    divisor = pl.when(pl.col("cause").is_in(SHARED_BY_ALL)).then(num_ranks).otherwise(max(num_ranks - 1, 1))
    waits = charges.group_by("cause", "culprit", "layer").agg(
        pl.col("charged_ns").sum() / num_steps, pl.col("cost_ns").sum() / num_steps
    )
    waits = waits.with_columns(pl.col("cost_ns") / divisor)
    if "slow_network" in transfers["cause"]:
        is_seen_twice = pl.col("cause") == "slow_network"
        waits = waits.with_columns(cost_ns=pl.when(is_seen_twice).then(0.0).otherwise("cost_ns"))
    both = pl.concat([conform(waits, SCHEMA), transfers])
    total = both.group_by("cause", "culprit", "layer").agg(pl.col("charged_ns", "cost_ns").sum())
    return total.sort(["cost_ns", "cause", "culprit", "layer"], descending=[True, False, False, False], nulls_last=True)
