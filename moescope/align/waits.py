"""Arrival wait, removable wait and transfer of every rank in every matched collective."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from moescope.align.collectives import SYNCHRONISING
from moescope.align.transfer import TransferModel, fit_transfer
from moescope.align.volume import with_volume


def with_waits(
    rows: pl.DataFrame, host_of_rank: Mapping[int, str], known: Mapping[str, TransferModel] | None = None
) -> tuple[pl.DataFrame, dict[str, TransferModel]]:
    """Adds ``late_rank, arrival_wait_ns, removable_wait_ns, transfer_ns, tier, bottleneck_bytes, is_last, complete``.

    ``rows``: matched collectives on the common clock. ``arrival_wait``: until the last peer with data for this rank
    begins, never more than the collective's own duration; it and ``transfer`` sum to the duration.
    ``late_rank`` is that peer, null where nobody was later; ``is_last`` marks the last to arrive where arrivals differ.
    Returns the transfer models used, per tier: those in ``known`` (a baseline's), else fitted to the rows themselves.
    """
    rows = rows.with_columns(
        complete=pl.len().over("instance") == pl.col("members").list.len(),
        has_empty_pair=(pl.col("in_splits").list.min().fill_null(1) == 0).any().over("instance"),
        tier=pl.when(pl.col("rank").replace_strict(host_of_rank).n_unique().over("instance") > 1)
        .then(pl.lit("across hosts"))
        .otherwise(pl.lit("within host")),
    )
    rows = _latest(rows)
    duration = pl.col("end_ns") - pl.col("start_ns")
    synchronising = pl.col("kind").is_in([*SYNCHRONISING, "broadcast", "gather", "scatter", "reduce", "other"])
    rows = rows.with_columns(
        arrival_wait_ns=pl.when(synchronising)
        .then((pl.col("latest_ns") - pl.col("start_ns")).clip(0).clip(upper_bound=duration))
        .otherwise(0)
    ).with_columns(
        transfer_ns=duration - pl.col("arrival_wait_ns"),
        late_rank=pl.when(pl.col("arrival_wait_ns") > 0).then(pl.col("late_rank")),
        is_last=(pl.col("rank") == pl.col("last_rank"))
        & (pl.col("start_ns").min().over("instance") < pl.col("latest_ns")),
    )
    rows = with_volume(rows, host_of_rank)
    models = {**fit_transfer(_instance_table(rows)), **(known or {})}
    return _with_removable(rows, models), models


def _latest(rows: pl.DataFrame) -> pl.DataFrame:
    """``latest_ns, late_rank``: the last peer with data for each rank; ``last_rank``: the last of all.

    Among ranks that are equally late the lowest is named.
    """
    by_start = pl.col("rank").sort_by(["start_ns", "rank"], descending=[True, False]).first().over("instance")
    rows = rows.with_columns(
        latest_ns=pl.col("start_ns").max().over("instance"), late_rank=by_start, last_rank=by_start
    )
    sparse = rows.filter("has_empty_pair")
    if sparse.is_empty():
        return rows
    exact = pl.concat([_latest_with_data(part) for _, part in sparse.group_by(["instance"], maintain_order=True)])
    return pl.concat([rows.filter(~pl.col("has_empty_pair")), exact]).sort("instance", "rank")


def _latest_with_data(part: pl.DataFrame) -> pl.DataFrame:
    """One instance with empty pairs: a rank depends only on itself and on the peers that sent it something."""
    members = part["members"][0].to_list()
    ranks, start = part["rank"].to_numpy(), part["start_ns"].to_numpy()
    position = np.array([members.index(rank) for rank in ranks])
    sends = np.ones((len(ranks), len(members)), dtype=np.int64)
    for row, splits in enumerate(part["in_splits"].to_list()):
        if splits is not None and len(splits) == len(members):
            sends[row] = splits
    depends = sends[:, position].T > 0
    np.fill_diagonal(depends, True)
    begun = np.where(depends, start[None, :], np.iinfo(np.int64).min)
    late = begun.argmax(axis=1)
    return part.with_columns(latest_ns=pl.Series(begun.max(axis=1)), late_rank=pl.Series(ranks[late]))


def _instance_table(rows: pl.DataFrame) -> pl.DataFrame:
    return (
        rows.filter((pl.col("kind") == "all_to_all") & pl.col("complete") & (pl.len().over("instance") > 1))
        .group_by("instance", maintain_order=True)
        .agg(
            pl.col("tier").first(),
            pl.col("bottleneck_bytes").first(),
            span_ns=pl.col("end_ns").max() - pl.col("start_ns").max(),
            skew_ns=pl.col("start_ns").max() - pl.col("start_ns").min(),
            last_ns=(pl.col("end_ns") - pl.col("start_ns")).sort_by("start_ns").last(),
        )
        .with_columns(skew_share=pl.col("skew_ns") / pl.col("last_ns").clip(1))
    )


def _with_removable(rows: pl.DataFrame, models: Mapping[str, TransferModel]) -> pl.DataFrame:
    undisturbed = np.full(len(rows), np.nan)
    size = rows["slowest_peer_bytes"].cast(pl.Float64).to_numpy()
    for tier, model in models.items():
        mine = (rows["tier"] == tier).to_numpy() & (rows["kind"] == "all_to_all").to_numpy()
        undisturbed[mine] = model.duration_ns(size[mine])
    excess = (rows["end_ns"] - rows["start_ns"]).to_numpy() - undisturbed
    wait = rows["arrival_wait_ns"].to_numpy()
    removable = np.where(np.isnan(excess), wait, np.clip(np.nan_to_num(excess), 0, wait))
    return rows.with_columns(
        removable_wait_ns=pl.Series(np.rint(removable).astype(np.int64)),
        undisturbed_ns=pl.Series(undisturbed).fill_nan(None),
    ).drop("latest_ns", "last_rank", "has_empty_pair")
