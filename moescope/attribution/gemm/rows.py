"""Rows of every local expert, from the counts that the hooks write."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import polars as pl

from moescope.attribution.load import ExpertPlacement, members_of

SCHEMA: dict[str, Any] = {
    "rank": pl.Int64, "step": pl.Int64, "microbatch": pl.Int32, "layer": pl.Int32, "group_rows": pl.List(pl.Int64),
}  # fmt: skip
_KEY = ["group", "step", "microbatch", "layer"]


def local_rows(
    expert_load: pl.DataFrame,
    ep_groups: Sequence[Sequence[int]],
    placement: ExpertPlacement,
    steps: Collection[int] | None = None,
) -> pl.DataFrame:
    """The columns of SCHEMA: rows that each rank's experts received, in the order of the experts.

    ``expert_load``: the telemetry table, counts before capacity; ``placement``: EP member that holds each expert, for
    all layers or by layer number, contiguous if None; ``steps``: only these. Empty where the counts or the groups are
    not known.
    """
    group_of = {rank: index for index, group in enumerate(ep_groups) for rank in group}
    if expert_load.is_empty() or not group_of:
        return pl.DataFrame(schema=SCHEMA)
    table = expert_load.filter(pl.col("rank").is_in(list(group_of)))
    table = table.filter(pl.col("step").is_in(list(steps))) if steps is not None else table
    num_experts = table["counts"].list.len().max() if len(table) else None
    if not isinstance(num_experts, int) or num_experts == 0:
        return pl.DataFrame(schema=SCHEMA)
    table = table.filter(pl.col("counts").list.len() == num_experts)
    table = table.with_columns(group=pl.col("rank").replace_strict(group_of, return_dtype=pl.Int64)).sort(_KEY)
    counts = table["counts"].explode().to_numpy().reshape(-1, num_experts)
    first = np.flatnonzero(table.select(pl.struct(_KEY).rle_id().diff().fill_null(1) > 0).to_series().to_numpy())
    summed = np.add.reduceat(counts, first, axis=0)
    size = len(ep_groups[0])
    places = table.select(_KEY)[first]
    frames = []
    for (layer,), part in places.with_row_index("row").group_by("layer", maintain_order=True):
        member = np.array(members_of(placement, int(str(layer)), num_experts, size))
        frames += [
            _of_member(part.drop("row"), summed[part["row"]][:, member == index], [group[index] for group in ep_groups])
            for index in range(size)
        ]
    return pl.concat(frames).select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())


def _of_member(places: pl.DataFrame, rows: np.ndarray[Any, Any], rank_of_group: Sequence[int]) -> pl.DataFrame:
    """One member of every group: its rank and its experts' rows."""
    rank = pl.col("group").replace_strict(dict(enumerate(rank_of_group)), return_dtype=pl.Int64)
    return places.with_columns(rank=rank, group_rows=pl.Series(rows.astype(np.int64).tolist(), dtype=pl.List(pl.Int64)))
