"""What transfers cost beyond even volumes over equal links: volume imbalance and slow links.

The duration of an all-to-all with everyone there is ``alpha + bottleneck bytes / B`` (``align.transfer``).

* Volume imbalance: ``(bottleneck - mean) bytes / B``, what an even exchange of the same total would save.
* Slow links: groups that work side by side over the same kind of link are compared; the fastest group's time per byte is
  what the links can do, and what a group takes beyond it is charged to its links. With one group there is nothing
  to compare with but a baseline.

Only the part that no compute hides counts. Groups side by side share a turn, and the slowest of them holds up the step.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from moescope.align import TransferModel
from moescope.align.robust import mad

SLOW_FACTOR = 1.25
"""A group is slow when its time per byte is this many times the fastest comparable group's."""
BLAME_FACTOR = 0.5
"""One rank's link is named when its own bytes explain the spans with this share of the bottleneck model's scatter."""
MIN_EXCHANGES = 6

SCHEMA = {
    "cause": pl.String, "culprit": pl.Int64, "layer": pl.Int32, "charged_ns": pl.Float64, "cost_ns": pl.Float64,
}  # fmt: skip


def transfer_causes(rows: pl.DataFrame, models: Mapping[str, TransferModel], num_steps: int) -> pl.DataFrame:
    """``cause, culprit, layer, charged_ns (0), cost_ns`` per step; ``culprit`` null where no single rank stands out.

    ``rows``: ``spans.spans`` with ``exposed_transfer_ns`` and the columns of ``align.volume``.
    """
    exchanges = _exchanges(rows)
    if exchanges.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    volume = _slowest_of_turn(_volume_loss(exchanges, models), num_steps, "volume_imbalance")
    slow = _slowest_of_turn(_slow_links(exchanges, rows), num_steps, "slow_network")
    return pl.concat([volume, slow])


def _exchanges(rows: pl.DataFrame) -> pl.DataFrame:
    """One row per complete all-to-all of known volume."""
    known = rows.filter(
        (pl.col("kind") == "all_to_all") & pl.col("complete") & pl.col("bottleneck_bytes").is_not_null()
    )
    return (
        known.group_by("instance", maintain_order=True)
        .agg(
            pl.col(
                "step", "turn", "layer", "group", "tier", "bottleneck_bytes", "mean_bytes", "bottleneck_rank"
            ).first(),
            num_ranks=pl.len(),
            span_ns=(pl.col("end_ns").max() - pl.col("start_ns").max()).clip(0),
            exposed_ns=pl.col("exposed_transfer_ns").mean(),
            transfer_ns=pl.col("transfer_ns").mean(),
        )
        .with_columns(exposed_share=pl.col("exposed_ns") / pl.col("transfer_ns").clip(1))
    )


def _volume_loss(exchanges: pl.DataFrame, models: Mapping[str, TransferModel]) -> pl.DataFrame:
    rate = {tier: model.bytes_per_ns for tier, model in models.items()}
    if not rate:
        return exchanges.head(0).with_columns(loss_ns=0.0, culprit="bottleneck_rank")
    known = exchanges.filter(pl.col("tier").is_in(list(rate)))
    known = known.with_columns(bytes_per_ns=pl.col("tier").replace_strict(rate, return_dtype=pl.Float64))
    uneven = (pl.col("bottleneck_bytes") - pl.col("mean_bytes")) / pl.col("bytes_per_ns")
    loss = pl.min_horizontal(uneven, pl.col("transfer_ns")) * pl.col("exposed_share")
    return known.with_columns(loss_ns=loss, culprit="bottleneck_rank")


def _slow_links(exchanges: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Losses of the groups whose time per byte stands out from the fastest group of the same size and tier."""
    large = exchanges.filter(
        pl.col("bottleneck_bytes") > pl.col("bottleneck_bytes").median().over("tier", "num_ranks") / 2
    )
    pace = large.group_by("tier", "num_ranks", "group").agg(
        ns_per_byte=(pl.col("span_ns") / pl.col("bottleneck_bytes")).median(), num_exchanges=pl.len()
    )
    pace = pace.filter(pl.col("num_exchanges") >= MIN_EXCHANGES)
    pace = pace.with_columns(best=pl.col("ns_per_byte").min().over("tier", "num_ranks"))
    slow = pace.filter(pl.col("ns_per_byte") > SLOW_FACTOR * pl.col("best"))
    parts = []
    for (group,), of_group in slow.group_by(["group"], maintain_order=True):
        mine = large.filter(pl.col("group") == group)
        expected = pl.col("bottleneck_bytes") * float(of_group["best"][0])
        loss = (pl.col("span_ns") - expected).clip(0) * pl.col("exposed_share")
        culprit = _blame(rows.filter(pl.col("group") == group), mine)
        parts.append(mine.with_columns(loss_ns=loss, culprit=pl.lit(culprit, pl.Int64)))
    return pl.concat(parts) if parts else exchanges.head(0).with_columns(loss_ns=0.0, culprit=pl.lit(None, pl.Int64))


def _blame(rows: pl.DataFrame, exchanges: pl.DataFrame) -> int | None:
    """The rank whose own bytes explain the spans: with one slow port every exchange lasts as long as that port needs."""
    spans = exchanges.sort("instance")["span_ns"].to_numpy().astype(np.float64)
    scatter = {None: _scatter(spans, exchanges.sort("instance")["bottleneck_bytes"].to_numpy())}
    kept = rows.filter(pl.col("instance").is_in(exchanges["instance"].implode()))
    for (rank,), part in kept.group_by(["rank"], maintain_order=True):
        scatter[int(rank)] = _scatter(spans, part.sort("instance")["remote_bytes"].to_numpy())  # type: ignore[call-overload]
    best = min((rank for rank in scatter if rank is not None), key=lambda rank: scatter[rank], default=None)
    return best if best is not None and scatter[best] < BLAME_FACTOR * scatter[None] else None


def _scatter(spans: np.ndarray, size: np.ndarray) -> float:  # type: ignore[type-arg]
    """Relative scatter of time per byte."""
    pace = spans / np.maximum(size.astype(np.float64), 1)
    return mad(pace) / max(float(np.median(pace)), 1e-12)


def _slowest_of_turn(losses: pl.DataFrame, num_steps: int, cause: str) -> pl.DataFrame:
    """Groups side by side hold up the step once: each turn counts its largest loss."""
    worst = losses.filter(pl.col("loss_ns") > 0).sort("loss_ns", descending=True).unique(["step", "turn"], keep="first")
    table = worst.group_by("culprit", "layer").agg(cost_ns=pl.col("loss_ns").sum() / num_steps)
    table = table.with_columns(cause=pl.lit(cause), charged_ns=pl.lit(0.0))
    return table.select([pl.col(name).cast(dtype) for name, dtype in SCHEMA.items()])
