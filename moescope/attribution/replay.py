"""What a run would have been shorter by without some of its delays: its collectives played again with shorter spans.

In a pipeline a rank's delay is taken up where another stage waits anyway, so waits summed up say too much of what it
costs. Played again, every rank arrives when its shorter spans let it, and a collective ends for it as much later than
the last arrival, or than its own where it was not held, as it did in the run. With nothing shortened the run itself
comes out.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import polars as pl

from moescope.attribution.timeline import FloatArray, Timeline


def saved_ns(rows: pl.DataFrame, lines: Mapping[int, Timeline], spans: FloatArray, transfers: FloatArray) -> FloatArray:
    """[k] by how much sooner the run ends, for k alternatives; negative where it ends later.

    ``rows``: ``spans.spans``, in time order; ``spans``, ``transfers``: [k, len(rows)] ns that each row's span and each
    row's transfer take less.
    """
    ranks = sorted(lines)
    rank = rows["rank"].replace_strict({rank: at for at, rank in enumerate(ranks)}, return_dtype=pl.Int64).to_numpy()
    origin = int(rows["start_ns"].to_numpy().min())
    start, end = ((rows[name] - origin).to_numpy().astype(np.float64) for name in ("start_ns", "end_ns"))
    is_last = pl.col("start_ns") == pl.col("start_ns").max().over("instance")
    waits = rows.select(pl.col("late_rank").is_not_null() | is_last).to_series().to_numpy()
    blocking = rows["is_blocking"].to_numpy()
    alone = end - start - rows["removable_wait_ns"].to_numpy()
    left = np.array([float(lines[rank].edges_ns[0] - origin) for rank in ranks])
    again = np.broadcast_to(left, (len(spans), len(ranks))).copy()
    firsts: list[int] = np.flatnonzero(np.diff(rows["instance"].to_numpy(), prepend=-1)).tolist()
    for first, last in pairwise([*firsts, len(rows)]):
        part = slice(first, last)
        who = rank[part]
        arrives = again[:, who] + (start[part] - left[who]) - spans[:, part]
        after_last = end[part] - start[part].max()
        held = np.maximum(arrives + alone[part], arrives.max(1, keepdims=True) + after_last)
        ends = np.where(waits[part], held, arrives + (end - start)[part]) - transfers[:, part]
        again[:, who] = np.where(blocking[part], ends, arrives)
        left[who] = np.where(blocking[part], end[part], start[part])
    rest = np.array([float(lines[rank].edges_ns[-1] - origin) for rank in ranks]) - left
    return np.asarray((left + rest).max() - (again + rest).max(1))
