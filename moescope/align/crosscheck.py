"""Waits without clocks, to hold the aligned ones against.

Ranks leave a reduction or a gather together, so what a rank's own duration exceeds the shortest one by is its wait,
whatever the clocks say. Summed per rank this needs no common clock at all; where it disagrees with the aligned waits,
the alignment is off.
"""

from __future__ import annotations

import polars as pl


def clock_free_disagreement_ns(collectives: pl.DataFrame) -> int:
    """The largest difference of any rank's summed waits, aligned against clock-free, over collectives across hosts; ns.

    ``collectives``: ``Alignment.collectives``. Only kinds whose ranks end together count, and only complete ones.
    """
    rows = collectives.filter(
        (pl.col("tier") == "across hosts")
        & pl.col("complete")
        & pl.col("kind").is_in(["all_reduce", "all_gather", "reduce_scatter", "barrier"])
    )
    if rows.is_empty():
        return 0
    own = pl.col("end_ns") - pl.col("start_ns")
    rows = rows.with_columns(clock_free=own - own.min().over("instance"))
    by_rank = rows.group_by("rank").agg(
        (pl.col("arrival_wait_ns").sum() - pl.col("clock_free").sum()).abs().alias("off")
    )
    worst = by_rank["off"].max()
    return int(worst) if isinstance(worst, int) else 0
