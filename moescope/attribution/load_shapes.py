"""Load of ranks from the shapes of the experts' grouped products, where neither telemetry nor splits tell it.

The rows of a grouped product are the assignments that the rank received. A layer has several such products one after
the other over the same rows; they count once. Counts per expert are not in a shape.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from moescope.align.frames import conform
from moescope.attribution.load import DROPPED, EXPERT_COUNTS, RANK_COUNTS, Counts
from moescope.attribution.profile import RankProfile


def counts_from_shapes(profiles: Sequence[RankProfile]) -> Counts | None:
    """Rows per rank, step, microbatch and layer; None where a rank recorded no grouped product or another number.

    Layers without a recorded number are counted in the order in which they run.
    """
    parts = [_of_rank(profile) for profile in profiles]
    if len({len(part) for part in parts}) != 1 or not parts or parts[0].is_empty():
        return None
    key = ["step", "microbatch", "layer", "rank"]
    rows = pl.concat(parts).group_by(key).agg(pl.col("tokens").sum()).sort(key)
    return Counts("grouped_gemm", rows, pl.DataFrame(schema=EXPERT_COUNTS), pl.DataFrame(schema=DROPPED))


def _of_rank(profile: RankProfile) -> pl.DataFrame:
    forward = ~pl.col("backward").fill_null(False) & ~pl.col("is_recompute").fill_null(False)
    calls = profile.gemms.filter((pl.col("kind") == "grouped") & (pl.col("divided") == "m") & forward)
    calls = calls.sort("start_ns")
    place = pl.struct("step", "microbatch", "layer", "m")
    first = calls.filter((place != place.shift()).fill_null(True))
    in_order = pl.int_range(pl.len()).over("step", "microbatch")
    table = first.select(
        pl.col("step"),
        microbatch=pl.col("microbatch").cast(pl.Int64).fill_null(0),
        layer=pl.coalesce(pl.col("layer").cast(pl.Int64), in_order),
        rank=pl.lit(profile.rank, pl.Int64),
        tokens=pl.col("m").cast(pl.Float64),
    )
    return conform(table, RANK_COUNTS)
