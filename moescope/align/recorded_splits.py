"""Splits that the profiler cut, from the hooks' telemetry.

Kineto keeps 30 entries of a list, so in groups of more ranks the splits of an all-to-all are missing from the trace.
The hooks record the bytes per peer of the same exchange under its step, layer, microbatch, phase and direction.
"""

from __future__ import annotations

import numpy as np
import polars as pl

EXCHANGES_OF_ROWS = ("dispatch", "combine")
KEY = ("rank", "step", "layer", "microbatch", "phase", "backward")


def with_recorded_splits(rows: pl.DataFrame, collective: pl.DataFrame) -> pl.DataFrame:
    """Fills null ``in_splits`` and ``out_splits`` of all-to-alls where the telemetry's totals agree with the trace's.

    ``rows``: one rank's collectives (``instances.SCHEMA`` and ``rank, step``); ``collective``: the telemetry table.
    Bytes become rows by the largest size of a row that divides all of them.
    """
    is_cut = (pl.col("kind") == "all_to_all") & pl.col("in_splits").is_null() & pl.col("layer").is_not_null()
    ranks = rows["rank"].unique()
    of_rows = pl.col("phase").is_in(EXCHANGES_OF_ROWS) & pl.col("layer").is_not_null()
    known = collective.filter(pl.col("rank").is_in(ranks.implode()) & of_rows)
    if known.is_empty() or rows.filter(is_cut).is_empty():
        return rows
    table = known.select(
        *(pl.col(name).cast(rows.schema[name]) for name in KEY), sent="send_bytes", received="recv_bytes"
    ).unique(KEY, keep="none", maintain_order=True)
    entries = pl.concat([table["sent"].explode(), table["received"].explode()]).drop_nulls()
    unit = max(int(np.gcd.reduce(entries.to_numpy())) if len(entries) else 1, 1)
    backward = pl.col("backward").fill_null(False)
    joined = rows.with_columns(backward=backward).join(table, on=KEY, how="left", maintain_order="left")
    agrees = (pl.col("sent").list.sum() == pl.col("send_bytes")) & (
        pl.col("received").list.sum() == pl.col("recv_bytes")
    )
    fills = (is_cut & agrees).fill_null(value=False)
    return joined.with_columns(
        in_splits=pl.when(fills).then(pl.col("sent").list.eval(pl.element() // unit)).otherwise("in_splits"),
        out_splits=pl.when(fills).then(pl.col("received").list.eval(pl.element() // unit)).otherwise("out_splits"),
        backward=rows["backward"],
    ).drop("sent", "received")
