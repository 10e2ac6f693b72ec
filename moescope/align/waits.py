"""Arrival wait, removable wait and transfer of every rank in every matched collective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from moescope.align.collectives import SYNCHRONISING
from moescope.align.links import SlowLink, find_slow_links
from moescope.align.roots import with_roots
from moescope.align.transfer import TransferModel, calm, fit_transfer
from moescope.align.volume import with_volume


@dataclass(frozen=True, slots=True)
class Waits:
    """``rows`` with what ``with_waits`` adds, the transfer models used (per tier), and the slow links found."""

    rows: pl.DataFrame
    models: dict[str, TransferModel]
    slow_links: tuple[SlowLink, ...]


def with_waits(
    rows: pl.DataFrame,
    host_of_rank: Mapping[int, str],
    known: Mapping[str, TransferModel] | None = None,
    link_rates: Mapping[str, float] | None = None,
) -> Waits:
    """Adds ``late_rank, arrival_wait_ns, removable_wait_ns, transfer_ns, tier, is_last, complete``, what
    ``volume.with_volume`` adds, and of all-to-alls ``undisturbed_ns`` and, if no link were slow, ``even_links_ns``.

    ``rows``: matched collectives on the common clock. ``arrival_wait``: until the last peer with data for this rank
    begins, never more than the collective's own duration; it and ``transfer`` sum to the duration.
    ``late_rank`` is that peer, null where nobody was later; ``is_last`` marks the last to arrive where arrivals differ.
    The transfer models are those in ``known`` (a baseline's), else fitted to the rows themselves. ``link_rates``: by
    tier what the devices' data sheet says of their links.
    """
    rows = rows.with_columns(
        complete=pl.len().over("instance") == pl.col("members").list.len(),
        has_empty_pair=(pl.col("in_splits").list.min().fill_null(1) == 0).any().over("instance"),
        tier=pl.when(pl.col("rank").replace_strict(host_of_rank).n_unique().over("instance") > 1)
        .then(pl.lit("across hosts"))
        .otherwise(pl.lit("within host")),
    )
    rows = with_roots(_latest(rows))
    duration = pl.col("end_ns") - pl.col("start_ns")
    synchronising = pl.col("kind").is_in([*SYNCHRONISING, "p2p", "broadcast", "gather", "scatter", "reduce", "other"])
    rows = rows.with_columns(
        arrival_wait_ns=pl.when(synchronising)
        .then((pl.col("latest_ns") - pl.col("start_ns")).clip(0).clip(upper_bound=duration))
        .otherwise(0)
    ).with_columns(
        transfer_ns=duration - pl.col("arrival_wait_ns"),
        late_rank=pl.when(pl.col("arrival_wait_ns") > 0).then(pl.col("late_rank")),
        is_last=(pl.col("rank") == pl.col("last_rank"))
        & (pl.col("start_ns").min().over("instance") < pl.col("start_ns").max().over("instance")),
    )
    rows = with_volume(rows, host_of_rank)
    ends = calm(_ends(rows))
    models = {**fit_transfer(ends), **(known or {})}
    latency = {tier: model.alpha_ns for tier, model in models.items()}
    slow = find_slow_links(ends, host_of_rank, latency, _usual(known or {}, link_rates or {}))
    if slow:
        rows = with_volume(rows, host_of_rank, slow)
        models = {**fit_transfer(calm(_ends(rows))), **(known or {})}
    return Waits(_with_removable(rows, models), models, slow)


def _usual(known: Mapping[str, TransferModel], link_rates: Mapping[str, float]) -> dict[str, tuple[float, str]]:
    """The usual speed by tier and where it is known from: a baseline goes before the data sheet."""
    sheet = {tier: (rate, "data sheet") for tier, rate in link_rates.items()}
    return {**sheet, **{tier: (model.bytes_per_ns, "baseline") for tier, model in known.items()}}


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


def _ends(rows: pl.DataFrame) -> pl.DataFrame:
    """All-to-alls of at least two ranks that left traces, with the columns that ``transfer.calm`` wants."""
    first, last = pl.col("start_ns").min().over("instance"), pl.col("start_ns").max().over("instance")
    last_ns = (pl.col("end_ns") - pl.col("start_ns")).sort_by("start_ns").last().over("instance")
    return rows.filter((pl.col("kind") == "all_to_all") & (pl.len().over("instance") > 1)).with_columns(
        after_ns=pl.col("end_ns") - last, skew_share=(last - first) / last_ns.clip(1)
    )


def _with_removable(rows: pl.DataFrame, models: Mapping[str, TransferModel]) -> pl.DataFrame:
    undisturbed = np.full(len(rows), np.nan)
    even = undisturbed.copy()
    size = {name: rows[name].cast(pl.Float64).to_numpy() for name in ("paced_bytes", "even_bytes")}
    for tier, model in models.items():
        mine = (rows["tier"] == tier).to_numpy() & (rows["kind"] == "all_to_all").to_numpy()
        undisturbed[mine] = model.duration_ns(size["paced_bytes"][mine])
        even[mine] = model.duration_ns(size["even_bytes"][mine])
    excess = (rows["end_ns"] - rows["start_ns"]).to_numpy() - undisturbed
    wait = rows["arrival_wait_ns"].to_numpy()
    removable = np.where(np.isnan(excess), wait, np.clip(np.nan_to_num(excess), 0, wait))
    return rows.with_columns(
        removable_wait_ns=pl.Series(np.rint(removable).astype(np.int64)),
        undisturbed_ns=pl.Series(undisturbed).fill_nan(None),
        even_links_ns=pl.Series(even).fill_nan(None),
    ).drop("latest_ns", "last_rank", "has_empty_pair")
