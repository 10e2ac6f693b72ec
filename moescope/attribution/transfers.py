"""What transfers cost beyond even volumes over equal links: volume imbalance and slow links.

The duration of an all-to-all with everyone there is ``alpha + bottleneck bytes / B`` (``align.transfer``).

* Volume imbalance: ``(bottleneck - mean) bytes / B``, what an even exchange of the same total would save. Where the
  bottleneck is the rank whose experts draw most rows (it receives most in a dispatch, sends most in a combine, and the
  reverse in the backward pass) the cause is the experts' load: balancing it evens the exchange too.
* Slow links: what the exchanges of a group with a slow link (``align.links``) take beyond links of the usual speed.
  Messages between two ranks are compared with the fastest pair's over the same kind of link.
  Groups without one are compared with those that work side by side over the same kind of link: the fastest group's time
  per byte is what the links can do, and what a group takes beyond it is charged to its links.

Only the part that no compute hides counts. Groups side by side share a turn, and the slowest of them holds up the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from moescope.align import SlowLink, TransferModel
from moescope.align.frames import conform

SLOW_FACTOR = 1.25
"""A group is slow when its time per byte is this many times the fastest comparable group's."""
MIN_EXCHANGES = 6

SCHEMA = {
    "cause": pl.String, "culprit": pl.Int64, "layer": pl.Int32, "charged_ns": pl.Float64, "cost_ns": pl.Float64,
    "transfer_ns": pl.Float64,
}  # fmt: skip

LOSSES = {
    "kind": pl.String, "cause": pl.String, "culprit": pl.Int64, "layer": pl.Int32, "instance": pl.Int64,
    "loss_ns": pl.Float64,
}  # fmt: skip


def transfer_causes(losses: pl.DataFrame, num_steps: int) -> pl.DataFrame:
    """``cause, culprit, layer, charged_ns (0), cost_ns, transfer_ns (= cost_ns)`` per step.

    ``culprit`` is null where no rank stands out. ``losses``: ``transfer_losses``.
    """
    table = losses.group_by("kind", "cause", "culprit", "layer", maintain_order=True).agg(
        cost_ns=pl.col("loss_ns").sum() / num_steps
    )
    return conform(table.with_columns(charged_ns=pl.lit(0.0), transfer_ns="cost_ns"), SCHEMA)


def transfer_losses(
    rows: pl.DataFrame, models: Mapping[str, TransferModel], links: Sequence[SlowLink] = ()
) -> pl.DataFrame:
    """``kind`` (volume or links), ``cause, culprit, layer, instance, loss_ns``: what single collectives lose.

    ``rows``: ``spans.spans`` with the columns of ``align.waits``; ``links``: ``align.links``.
    """
    exchanges = _exchanges(rows)
    volume, behind_links = [], [_slower_messages(rows, links)]
    if len(exchanges):
        volume, behind_links = [_volume_loss(exchanges, models)], [_slow_links(exchanges, rows, links), *behind_links]
    kinds = {"volume": volume, "links": behind_links}
    found = [
        conform(_slowest_of_turn(pl.concat(parts, how="diagonal")).with_columns(kind=pl.lit(kind)), LOSSES)
        for kind, parts in kinds.items()
        if parts
    ]
    return pl.concat(found)


def _exchanges(rows: pl.DataFrame) -> pl.DataFrame:
    """One row per complete all-to-all of known volume."""
    known = rows.filter(
        (pl.col("kind") == "all_to_all") & pl.col("complete") & pl.col("bottleneck_bytes").is_not_null()
    )
    return (
        known.group_by("instance", maintain_order=True)
        .agg(
            pl.col("step", "stage", "turn", "layer", "phase", "backward", "group", "members", "tier").first(),
            pl.col("bottleneck_bytes", "mean_bytes", "bottleneck_rank", "bottleneck_receives").first(),
            pl.col("even_links_ns").max(),
            num_ranks=pl.len(),
            span_ns=(pl.col("end_ns").max() - pl.col("start_ns").max()).clip(0),
            exposed_ns=pl.col("exposed_transfer_ns").mean(),
            transfer_ns=pl.col("transfer_ns").mean(),
        )
        .with_columns(exposed_share=pl.col("exposed_ns") / pl.col("transfer_ns").clip(1))
    )


def _volume_loss(exchanges: pl.DataFrame, models: Mapping[str, TransferModel]) -> pl.DataFrame:
    rate = {tier: model.bytes_per_ns for tier, model in models.items()}
    known = exchanges.filter(pl.col("tier").is_in(list(rate)))
    if known.is_empty():
        return known.with_columns(loss_ns=0.0, culprit="bottleneck_rank", cause=pl.lit(""))
    known = known.with_columns(bytes_per_ns=pl.col("tier").replace_strict(rate, return_dtype=pl.Float64))
    uneven = (pl.col("bottleneck_bytes") - pl.col("mean_bytes")) / pl.col("bytes_per_ns")
    loss = pl.min_horizontal(uneven, pl.col("transfer_ns")) * pl.col("exposed_share")
    brings_rows = (pl.col("phase") == "dispatch") ^ pl.col("backward").fill_null(False)
    is_routing = pl.col("phase").is_in(["dispatch", "combine"]) & (brings_rows == pl.col("bottleneck_receives"))
    cause = pl.when(is_routing.fill_null(False)).then(pl.lit("expert_load")).otherwise(pl.lit("volume_imbalance"))
    return known.with_columns(loss_ns=loss, culprit="bottleneck_rank", cause=cause)


def _slow_links(exchanges: pl.DataFrame, rows: pl.DataFrame, links: Sequence[SlowLink]) -> pl.DataFrame:
    """Losses behind slow links, and of groups without one that are still slower than a group beside them."""
    behind = {(link.members, link.tier): link for link in links}
    parts, rest = [], []
    for (members, tier), mine in exchanges.group_by(["members", "tier"], maintain_order=True):
        link = behind.get((tuple(members), str(tier)))
        if link is None:
            rest.append(mine)
        else:
            parts.append(_behind(link, mine, rows))
    if rest:
        parts += _slower_groups(pl.concat(rest), rows)
    nothing = exchanges.head(0).with_columns(loss_ns=0.0, culprit=pl.lit(None, pl.Int64), cause=pl.lit(""))
    return pl.concat(parts, how="diagonal") if parts else nothing


def _behind(link: SlowLink, mine: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """What exchanges and reductions take beyond links of the usual speed."""
    loss = (pl.col("span_ns") - pl.col("even_links_ns")).clip(0) * pl.col("exposed_share")
    over = pl.col("members").list.set_intersection(list(link.ranks)).list.len() > 0
    reductions = _reductions(rows.filter(over & (pl.col("tier") == link.tier)), 1 / link.factor)
    culprit = link.ranks[0] if len(link.ranks) == 1 else None
    both = pl.concat([mine.with_columns(loss_ns=loss), reductions], how="diagonal")
    return both.with_columns(culprit=pl.lit(culprit, pl.Int64), cause=pl.lit("slow_network"))


def _slower_groups(exchanges: pl.DataFrame, rows: pl.DataFrame) -> list[pl.DataFrame]:
    """Losses of the groups whose time per byte stands out from the fastest group of the same size and tier."""
    large = exchanges.filter(
        pl.col("bottleneck_bytes") > pl.col("bottleneck_bytes").median().over("tier", "num_ranks") / 2
    )
    pace = large.group_by("tier", "num_ranks", "group").agg(
        ns_per_byte=(pl.col("span_ns") / pl.col("bottleneck_bytes")).median(), num_exchanges=pl.len()
    )
    pace = pace.filter(pl.col("num_exchanges") >= MIN_EXCHANGES)
    pace = pace.with_columns(best=pl.col("ns_per_byte").min().over("tier", "num_ranks"))
    slow = pace.filter(pl.col("ns_per_byte") > SLOW_FACTOR * pl.col("best")).sort("group")
    parts = []
    for group, ns_per_byte, best in slow.select("group", "ns_per_byte", "best").rows():
        mine = large.filter(pl.col("group") == group)
        loss = (pl.col("span_ns") - pl.col("bottleneck_bytes") * best).clip(0) * pl.col("exposed_share")
        members = mine["members"][0].to_list()
        covers = pl.col("members").list.set_intersection(members).list.len() == len(members)
        every = pl.concat(
            [mine.with_columns(loss_ns=loss), _reductions(rows.filter(covers), ns_per_byte / best)], how="diagonal"
        )
        parts.append(every.with_columns(culprit=pl.lit(None, pl.Int64), cause=pl.lit("slow_network")))
    return parts


def _slower_messages(rows: pl.DataFrame, links: Sequence[SlowLink]) -> pl.DataFrame:
    """Losses of messages in pairs whose time per byte stands out from the fastest pair's over the same tier."""
    both = (pl.col("kind") == "p2p") & (pl.len().over("instance") > 1) & (pl.col("send_bytes") > 0)
    messages = (
        rows.filter(both)
        .group_by("instance", maintain_order=True)
        .agg(
            pl.col("step", "stage", "turn", "layer", "members", "tier", "send_bytes").first(),
            pl.col("transfer_ns").mean(),
            exposed_ns=pl.col("exposed_transfer_ns").max().cast(pl.Float64),
        )
        .with_columns(ns_per_byte=pl.col("transfer_ns") / pl.col("send_bytes"))
        .with_columns(pace=pl.col("ns_per_byte").median().over("members", "tier"), number=pl.len().over("members"))
        .with_columns(best=pl.col("pace").min().over("tier"))
    )
    slow = messages.filter((pl.col("number") >= MIN_EXCHANGES) & (pl.col("pace") > SLOW_FACTOR * pl.col("best")))
    usual = pl.col("send_bytes") * pl.col("best")
    named = {link.ranks[0] for link in links if len(link.ranks) == 1}
    at_fault = [next((rank for rank in members if rank in named), None) for members in slow["members"]]
    return slow.with_columns(
        loss_ns=pl.min_horizontal(pl.col("transfer_ns") - usual, "exposed_ns").clip(0).cast(pl.Float64),
        culprit=pl.Series(at_fault, dtype=pl.Int64),
        cause=pl.lit("slow_network"),
    )


def _reductions(rows: pl.DataFrame, slowdown: float) -> pl.DataFrame:
    """Losses of reductions and gathers over slow links: a ring goes at its slowest link's pace."""
    over = rows.filter(pl.col("kind").is_in(["all_reduce", "reduce_scatter", "all_gather"]) & pl.col("complete"))
    per_instance = over.group_by("instance", maintain_order=True).agg(
        pl.col("step", "stage", "turn", "layer").first(), exposed_ns=pl.col("exposed_transfer_ns").mean()
    )
    return per_instance.with_columns(loss_ns=pl.col("exposed_ns") * (1 - 1 / slowdown))


def _slowest_of_turn(losses: pl.DataFrame) -> pl.DataFrame:
    """Groups side by side hold up the step once: each turn of a pipeline stage counts its largest loss."""
    worst = losses.filter(pl.col("loss_ns") > 0).sort(["loss_ns", "instance"], descending=[True, False])
    return worst.unique(["step", "stage", "turn"], keep="first", maintain_order=True)
