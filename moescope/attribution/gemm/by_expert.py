"""What every local expert's products take, over all layers: its rows, its time, and what of that is lost.

Single products are told apart by their order: the n-th of a layer, microbatch, direction and weight is the n-th local
expert's. A grouped call is one kernel for all of them: where the hooks' counts say the rows of each group, its time and
loss are shared out by the rows that its tiles compute (of gradients of weights, which sum over the rows, by the rows);
elsewhere its experts are not told apart.
"""

from __future__ import annotations

import polars as pl

SCHEMA = {
    "rank": pl.Int64, "expert": pl.Int64, "num_calls": pl.Int64, "rows": pl.Float64, "time_ns": pl.Float64,
    "loss_ns": pl.Float64, "is_shared_out": pl.Boolean,
}  # fmt: skip
"""``expert``: its number on its rank. ``rows``: mean per call. ``time_ns``, ``loss_ns``: sums over steps and layers."""

PLACE = ["rank", "step", "layer", "microbatch", "phase", "backward", "n", "k", "dtype"]


def by_expert(experts: pl.DataFrame) -> pl.DataFrame:
    """The columns of SCHEMA, sorted by rank and expert.

    ``experts``: the experts' products with their loss (``loss.with_loss``) and, of grouped ones, ``group_rows``.
    """
    rows = pl.concat([_single(experts), _grouped(experts)])
    table = rows.group_by("rank", "expert").agg(
        pl.col("rows").mean(),
        pl.col("time_ns", "loss_ns").sum(),
        pl.col("is_shared_out").any(),
        num_calls=pl.len(),
    )
    return table.select(pl.col(name).cast(kind) for name, kind in SCHEMA.items()).sort("rank", "expert")


_COLUMNS = ["rank", "expert", "rows", "time_ns", "loss_ns", "is_shared_out"]
_TYPES = [pl.Int64, pl.Int64, pl.Float64, pl.Float64, pl.Float64, pl.Boolean]


def _select(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(pl.col(name).cast(kind) for name, kind in zip(_COLUMNS, _TYPES, strict=True))


def _single(experts: pl.DataFrame) -> pl.DataFrame:
    """Single products of loops, in time order."""
    single = experts.filter((pl.col("kind") == "gemm") & pl.col("layer").is_not_null()).sort("start_ns")
    numbered = single.with_columns(expert=pl.int_range(pl.len()).over(PLACE), count=pl.len().over(PLACE))
    return _select(numbered.filter(pl.col("count") > 1).with_columns(is_shared_out=False))


def _grouped(experts: pl.DataFrame) -> pl.DataFrame:
    """Grouped products whose groups' rows are known, shared out over them."""
    known = experts.filter(pl.col("group_rows").is_not_null()).with_row_index("call")
    long = known.explode("group_rows").with_columns(expert=pl.int_range(pl.len()).over("call"))
    tile = pl.col("tile_m").cast(pl.Int64).clip(1)
    whole = (pl.col("group_rows") / tile).ceil() * tile
    padded = pl.when(pl.col("divided") == "k").then(pl.col("group_rows").cast(pl.Float64)).otherwise(whole)
    share = (padded / padded.sum().over("call")).fill_nan(0.0)
    long = long.with_columns(rows="group_rows", is_shared_out=True, share=share)
    return _select(long.with_columns(pl.col("time_ns", "loss_ns") * pl.col("share")))
