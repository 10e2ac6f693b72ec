"""Which matrix operations are experts' work, and which of their dimensions holds the tokens.

Grouped products and those in the ``experts`` phase are experts' work. The backward pass of trainers that annotate only
the forward pass is recognised by its shapes: with a weight [K, N] in the forward pass, the gradients of its input and
of itself are products over {K, N} and the tokens, and no product outside the experts has that weight.
"""

from __future__ import annotations

import polars as pl

_WEIGHT = ["low", "high"]


def with_experts(ops: pl.DataFrame) -> pl.DataFrame:
    """``ops`` with ``is_expert``, and ``rows`` set to the tokens where the shapes tell.

    ``ops``: ``phase, kind, m, n, k, rows`` of every operation.
    """
    surely = (pl.col("phase") == "experts").fill_null(False) | (pl.col("kind") == "grouped")
    ops = ops.with_columns(is_expert=surely)
    forward = ops.filter((pl.col("kind") == "gemm") & ~pl.col("backward").fill_null(False))
    weights = _weights(forward.filter("is_expert"))
    others = _weights(forward.filter(~pl.col("is_expert") & pl.col("phase").is_not_null()))
    by_rows, by_sum = _match(ops, weights, "n", "k"), _match(ops, weights, "m", "n")
    own = weights.join(others, on=_WEIGHT, how="anti")
    unnamed = pl.col("phase").is_null() & (_match(ops, own, "n", "k") | _match(ops, own, "m", "n"))
    is_expert = pl.col("is_expert") | unnamed
    in_sum = is_expert & ~by_rows & by_sum
    return ops.with_columns(
        is_expert=is_expert, rows=pl.when(in_sum).then(pl.col("k").cast(pl.Float64)).otherwise("rows")
    )


def _weights(ops: pl.DataFrame) -> pl.DataFrame:
    """Distinct weights, their two dimensions in order of size."""
    return ops.select(low=pl.min_horizontal("n", "k"), high=pl.max_horizontal("n", "k")).unique()


def _match(ops: pl.DataFrame, weights: pl.DataFrame, first: str, second: str) -> pl.Series:
    """Whether an operation is a single product and these two of its dimensions are a weight's; [len(ops)]."""
    pair = ops.select("kind", low=pl.min_horizontal(first, second), high=pl.max_horizontal(first, second))
    known = pair.join(weights.with_columns(found=True), on=_WEIGHT, how="left", maintain_order="left")
    return known.select(pl.col("found").fill_null(False) & (pl.col("kind") == "gemm")).to_series()
