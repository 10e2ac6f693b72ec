"""Rows of every local expert, from the counts that the hooks write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

SCHEMA: dict[str, Any] = {
    "rank": pl.Int64, "step": pl.Int64, "microbatch": pl.Int32, "layer": pl.Int32, "group_rows": pl.List(pl.Int64),
}  # fmt: skip


def local_rows(
    expert_load: pl.DataFrame, ep_groups: Sequence[Sequence[int]], placement: Sequence[int] | None
) -> pl.DataFrame:
    """The columns of SCHEMA: rows that each rank's experts received, in the order of the experts.

    ``expert_load``: the telemetry table, counts before capacity; ``placement``: EP member that holds each expert,
    contiguous if None. Empty where the counts or the groups are not known.
    """
    group_of = {rank: index for index, group in enumerate(ep_groups) for rank in group}
    if expert_load.is_empty() or not group_of:
        return pl.DataFrame(schema=SCHEMA)
    table = expert_load.filter(pl.col("rank").is_in(list(group_of))).with_columns(
        group=pl.col("rank").replace_strict(group_of, return_dtype=pl.Int64)
    )
    long = table.select(
        "step", "microbatch", "layer", "group", "counts", expert=pl.int_ranges(pl.col("counts").list.len())
    ).explode("counts", "expert")
    num_experts = int(long["expert"].max() or 0) + 1  # type: ignore[arg-type]
    size = len(ep_groups[0])
    member = list(placement) if placement else [expert * size // num_experts for expert in range(num_experts)]
    key = ["group", "step", "microbatch", "layer", "expert"]
    summed = long.group_by(key).agg(pl.col("counts").sum()).sort(key)
    holders = [
        (index, expert, group[member[expert]]) for index, group in enumerate(ep_groups) for expert in range(num_experts)
    ]
    holder = pl.DataFrame(holders, schema={"group": pl.Int64, "expert": pl.Int64, "rank": pl.Int64}, orient="row")
    held = summed.join(holder.cast({"expert": summed.schema["expert"]}), on=["group", "expert"]).sort(key)
    rows = held.group_by("rank", "step", "microbatch", "layer", maintain_order=True).agg(group_rows="counts")
    return rows.select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())
