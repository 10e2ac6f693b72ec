"""Point-to-point messages: the pairs of ranks they belong to, and the pipeline stages that these tell."""

from __future__ import annotations

import polars as pl

BOTH_WAYS = -1


def with_pairs(rows: pl.DataFrame) -> pl.DataFrame:
    """Adds ``sender`` (``BOTH_WAYS`` where one kernel sends and receives, null but for messages) and ``stage`` (Int64).

    ``members`` and ``group`` of a message become those of its pair and direction.
    ``rows``: all ranks' collectives with ``rank, peer, sends, members, group``.
    """
    stage = pipeline_stages(rows)
    is_message = pl.col("peer").is_not_null() & (pl.col("kind") == "p2p")
    lower, upper = pl.min_horizontal("rank", "peer"), pl.max_horizontal("rank", "peer")
    both_ways = pl.col("sends").is_null()
    sender = pl.when(is_message).then(
        pl.when(both_ways).then(BOTH_WAYS).when("sends").then("rank").otherwise("peer").cast(pl.Int64)
    )
    first = pl.when(both_ways).then(lower).otherwise(sender)
    second = pl.when(both_ways).then(upper).when("sends").then("peer").otherwise("rank")
    pair = pl.concat_list(lower, upper)
    name = pl.col("group_description").fill_null("p2p")
    arrow = pl.when(both_ways).then(pl.lit("<->")).otherwise(pl.lit("->"))
    label = pl.concat_str(name, pl.lit(" "), first, arrow, second)
    return rows.with_columns(
        sender=sender,
        members=pl.when(is_message).then(pair).otherwise("members"),
        group=pl.when(is_message).then(label).otherwise("group"),
        seq=pl.when(is_message).then(None).otherwise("seq"),
        stage=pl.col("rank").replace_strict(stage, default=0, return_dtype=pl.Int64),
    )


def pipeline_stages(rows: pl.DataFrame) -> dict[int, int]:
    """The pipeline stage of every rank that exchanges messages, by what ranks they are; {} where none do.

    Ranks that exchange messages, directly or through others, make up one pipeline, and stand in it in the order of
    their numbers: frameworks lay stages out over blocks of ranks. Ranks that share a group's all-to-alls run the same
    layers, so their messages (the keys and values of a ring of attention, say) make no pipeline.
    """
    messages = rows.filter((pl.col("kind") == "p2p") & pl.col("peer").is_not_null())
    is_exchange = (pl.col("kind") == "all_to_all") & pl.col("group_name").is_not_null()
    together = [set(members) for members in rows.filter(is_exchange)["members"].unique().to_list()]
    chain: dict[int, set[int]] = {}
    for a, b in messages.select("rank", "peer").unique().sort("rank", "peer").iter_rows():
        if any({a, b} <= members for members in together):
            continue
        joined = chain.get(a, {a}) | chain.get(b, {b})
        chain.update(dict.fromkeys(joined, joined))
    return {rank: sorted(ranks).index(rank) for rank, ranks in chain.items()}
