"""Counts into the load view."""

from __future__ import annotations

import numpy as np
import polars as pl

from moescope.attribution import Attribution
from moescope.attribution.load import Counts, dead_experts, gini, imbalance_cost_ns, intervals, random_floor, variation
from moescope.views.model import Load, LoadInterval, LoadLayer

MAX_INTERVALS = 20_000
"""Intervals kept in the view; the layers' means are over all of them."""


def load_view(counts: Counts, attribution: Attribution) -> Load | None:
    """Load per layer and interval; None where no interval is known."""
    table = intervals(counts)
    if table.is_empty():
        return None
    ranks = tuple(sorted(counts.rank_counts["rank"].unique().to_list()))
    costs = imbalance_cost_ns(attribution.work)
    layers = tuple(
        _layer(int(layer), part, ranks, counts, cost_ns=_per_step(costs.get(int(layer)), attribution.num_steps))
        for (layer,), part in table.group_by(["layer"], maintain_order=True)
    )
    layers = tuple(sorted(layers, key=lambda entry: entry.layer))
    per_rank = (
        counts.rank_counts.group_by("rank")
        .agg(pl.col("tokens").sum())
        .sort(["tokens", "rank"], descending=[True, False])
    )
    floors = [random_floor(total, len(ranks)) for total in table["total"]]
    return Load(
        source=counts.source,
        ranks=ranks,
        layers=layers,
        intervals=_intervals(table),
        cost_ns_per_step=round(sum(costs.values()) / attribution.num_steps) if costs else None,
        cost_basis=_cost_basis(attribution) if costs else "",
        hottest_rank=int(per_rank["rank"][0]),
        maxvio_rank=_mean(table["maxvio_rank"]),
        maxvio_rank_floor=float(np.mean(floors)),
    )


def _cost_basis(attribution: Attribution) -> str:
    where = "forward and backward" if True in attribution.row_costs else "forward"
    return f"measured expert time between the exchanges of every layer, microbatch and rank ({where})"


def _layer(layer: int, part: pl.DataFrame, ranks: tuple[int, ...], counts: Counts, *, cost_ns: int | None) -> LoadLayer:
    of_layer = counts.rank_counts.filter(pl.col("layer") == layer)
    num_intervals = max(len(part), 1)
    by_rank = dict(of_layer.group_by("rank").agg(pl.col("tokens").sum()).rows())
    rank_tokens = tuple(float(by_rank.get(rank, 0.0)) / num_intervals for rank in ranks)
    lists = [row for row in part["counts"].to_list() if row is not None]
    experts = np.array(lists, dtype=np.float64) if lists else np.zeros((0, 0))
    dropped = counts.dropped.filter(pl.col("layer") == layer)["dropped_share"]
    totals = part["total"].to_list()
    known = experts.size > 0
    return LoadLayer(
        layer=layer,
        expert_tokens=tuple(float(value) for value in experts.mean(axis=0)) if known else (),
        rank_tokens=rank_tokens,
        maxvio_expert=_mean(part["maxvio_expert"]) if known else None,
        maxvio_rank=_mean(part["maxvio_rank"]),
        maxvio_expert_floor=float(np.mean([random_floor(t, experts.shape[1]) for t in totals])) if known else None,
        maxvio_rank_floor=float(np.mean([random_floor(t, len(ranks)) for t in totals])),
        num_dead_experts=dead_experts(experts.sum(axis=0).astype(np.int64)) if known else None,
        dropped_share=float(dropped[0]) if len(dropped) and dropped[0] is not None else None,
        entropy=_mean(part["entropy"]) if known else None,
        hottest_rank=ranks[int(np.argmax(rank_tokens))],
        cost_ns_per_step=cost_ns,
        cv_expert=float(np.mean([variation(row) for row in experts])) if known else None,
        cv_rank=float(np.mean([variation(row.to_numpy()) for row in part["tokens"]])),
        gini_expert=float(np.mean([gini(row) for row in experts])) if known else None,
    )


def _per_step(cost_ns: float | None, num_steps: int) -> int | None:
    return round(cost_ns / num_steps) if cost_ns is not None else None


def _mean(values: pl.Series) -> float:
    mean = values.mean()
    return float(mean) if isinstance(mean, int | float) else 0.0


def _intervals(table: pl.DataFrame) -> tuple[LoadInterval, ...]:
    columns = ["step", "microbatch", "layer", "maxvio_expert", "maxvio_rank", "hottest_rank", "hottest_expert"]
    return tuple(LoadInterval(**row) for row in table.head(MAX_INTERVALS).select(columns).iter_rows(named=True))
