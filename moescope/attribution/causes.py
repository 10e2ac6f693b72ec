"""Charged waits and transfer losses summed up: what each cause costs a step, by rank and layer."""

from __future__ import annotations

import polars as pl

from moescope.align.frames import conform
from moescope.attribution.transfers import SCHEMA

SHARED_BY_ALL = ("expert_load", "pipeline")
"""Removing these lets everyone run at the mean: their cost is the wait averaged over all ranks. Removing another
cause lets the culprit run like the rest, so its cost is the wait averaged over the other ranks."""


SEEN_IN_TRANSFERS = ("slow_network", "volume_imbalance")
"""Where transfers were modelled, waits charged to these are the same time seen from ranks that wait for it."""


def summarise(
    charges: pl.DataFrame, transfers: pl.DataFrame, num_ranks: int, num_steps: int, *, is_modelled: bool
) -> pl.DataFrame:
    """``cause, culprit, layer, charged_ns, cost_ns, transfer_ns``: per step, largest cost first.

    ``charges``: ``delays.charge_waits``; ``transfers``: ``transfers.transfer_causes``; ``is_modelled``: whether
    transfers could be modelled. ``charged_ns`` is summed over the waiting ranks, ``cost_ns`` is what the step would be
    shorter by, of which ``transfer_ns`` in transfers and the rest in waits.
    """
    divisor = pl.when(pl.col("cause").is_in(SHARED_BY_ALL)).then(num_ranks).otherwise(max(num_ranks - 1, 1))
    waits = charges.group_by("cause", "culprit", "layer", maintain_order=True).agg(
        pl.col("charged_ns").sum() / num_steps, pl.col("cost_ns").sum() / num_steps
    )
    waits = waits.with_columns(_settled("charged_ns"), _settled("cost_ns"))
    is_seen_twice = pl.col("cause").is_in(SEEN_IN_TRANSFERS) & is_modelled
    waits = waits.with_columns(
        cost_ns=pl.when(is_seen_twice).then(0.0).otherwise(pl.col("cost_ns") / divisor), transfer_ns=pl.lit(0.0)
    )
    both = pl.concat([conform(waits, SCHEMA), transfers])
    total = both.group_by("cause", "culprit", "layer", maintain_order=True).agg(
        pl.col("charged_ns", "cost_ns", "transfer_ns").sum()
    )
    return total.sort(["cost_ns", "cause", "culprit", "layer"], descending=[True, False, False, False], nulls_last=True)


def _settled(column: str) -> pl.Expr:
    """Credits that outweigh a cause's charges (it was ahead on the whole) are taken off the others in proportion."""
    positive = pl.col(column).clip(0)
    kept = pl.when(positive.sum() > 0).then((pl.col(column).sum() / positive.sum()).clip(0)).otherwise(0.0)
    return positive * kept
