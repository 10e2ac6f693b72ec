"""What every rank did before it arrived at each collective: the material of the delay rule.

A span runs from the end of the collective the rank last waited in (or the arrival at one it did not wait in) to its
arrival at the next. Spans of one rank do not overlap, and with the collectives between them they fill its time.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from moescope.attribution.timeline import Activity, FloatArray, Timeline

BLOCKING_SHARE = 0.5
"""A rank waits in a collective when at least this share of its wait is covered by no compute."""

TAKES_RESULTS = (pl.col("kind") == "all_to_all") & (
    ((pl.col("phase") == "combine") & ~pl.col("backward").fill_null(False))
    | ((pl.col("phase") == "dispatch") & pl.col("backward").fill_null(False))
)
"""Exchanges that take the experts' results away: the span before one is expert work."""


def spans(collectives: pl.DataFrame, timelines: Mapping[int, Timeline]) -> tuple[pl.DataFrame, FloatArray]:
    """(rows, spent): ``collectives`` in time order of the instances, and [len(rows), activities] ns of each row's span.

    Adds ``exposed_wait_ns`` and ``exposed_transfer_ns`` (the parts that no compute covers), ``is_blocking``,
    ``span_ns``, ``turn`` (the collective's number within the rank and step, as most of its ranks of the stage count),
    ``is_expert_work`` and ``rows_processed`` (rows the experts worked on, null where unknown).
    """
    order = collectives.group_by("instance").agg(arrived_ns=pl.col("start_ns").max()).sort("arrived_ns", "instance")
    order = order.with_row_index("order").select("instance", "order")
    rows = collectives.join(order, on="instance").sort("order", "rank")
    rows = rows.with_columns(turn=pl.int_range(pl.len()).over("rank", "step"), at=pl.int_range(pl.len()))
    of_most = pl.col("turn").quantile(0.5, "higher").over("instance", "stage").cast(pl.Int64)
    rows = rows.with_columns(turn=of_most)  # a rank that lost an event counts one less from there on
    spent = np.zeros((len(rows), len(Activity)))
    parts = [
        _of_rank(part, timelines[int(rank)], spent) for (rank,), part in rows.group_by(["rank"], maintain_order=True)
    ]
    rows = (
        pl.concat(parts).sort("at")
        if parts
        else rows.with_columns(exposed_wait_ns=0, exposed_transfer_ns=0, is_blocking=False, span_ns=0)
    )
    return rows.with_columns(
        is_expert_work=TAKES_RESULTS.fill_null(False),
        rows_processed=pl.when(TAKES_RESULTS.fill_null(False)).then(_rows_sent(rows)),
    ), spent


def _rows_sent(rows: pl.DataFrame) -> pl.Expr:
    """Rows that a rank sends: the sum of its splits, or where the profiler cut them what it sends over a row's bytes.

    A row's bytes are the largest that divide every such exchange: many counts of rows have no common divisor.
    """
    cut = rows.filter(TAKES_RESULTS & pl.col("in_splits").is_null())["send_bytes"].drop_nulls()
    unit = int(np.gcd.reduce(cut.to_numpy())) if len(cut) else 1
    return pl.coalesce(pl.col("in_splits").list.sum(), pl.col("send_bytes") / max(unit, 1)).cast(pl.Float64)


def _of_rank(part: pl.DataFrame, timeline: Timeline, spent: FloatArray) -> pl.DataFrame:
    start, end = part["start_ns"].to_numpy(), part["end_ns"].to_numpy()
    wait = part["arrival_wait_ns"].to_numpy()
    exposed = timeline.spent_ns(start, start + wait)[:, Activity.WAIT]
    transfer = timeline.spent_ns(start + wait, end)[:, Activity.TRANSFER]
    is_blocking = exposed >= BLOCKING_SHARE * wait
    left = np.maximum.accumulate(np.where(is_blocking, end, start))
    low = np.concatenate(([timeline.edges_ns[0]], left[:-1])) if len(left) else left
    high = np.maximum(low, start)
    spent[part["at"].to_numpy()] = timeline.spent_ns(low, high)
    return part.with_columns(
        exposed_wait_ns=pl.Series(np.rint(exposed).astype(np.int64)),
        exposed_transfer_ns=pl.Series(np.rint(transfer).astype(np.int64)),
        is_blocking=pl.Series(is_blocking),
        span_ns=pl.Series(high - low),
    )
