"""The delay rule: what made the late rank late, for every wait, passed on through chains of waits.

For a wait of rank i for the late rank k, both ranks' time since their last common collective is compared activity by
activity. What k spent beyond i made it late; the wait is charged to k's excesses in proportion
(Boehme et al., TOPC 2016, Algorithm 1). Where k's excess is itself waiting, that share is passed on to the waits of
k in the interval, and so to what caused them, by a replay backward in time. Charges sum to the waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from moescope.align.frames import conform
from moescope.align.ranges import IntArray
from moescope.attribution.expert_work import RowCost
from moescope.attribution.timeline import Activity, FloatArray, Timeline

CAUSES = ("expert_load", "slow_rank", "memory", "host", "slow_network", "upstream_wait", "unexplained")
"""What a wait can be charged to, in the order of the charge columns."""

MIN_EXPLAINED_NS = 1.0


@dataclass(frozen=True, slots=True)
class Intervals:
    """Per wait: who waited for whom, and both ranks' intervals since their last common collective; [n] each."""

    row: IntArray
    """Row in the collectives table."""
    waiter: IntArray
    late: IntArray
    waiter_start_ns: IntArray
    waiter_end_ns: IntArray
    late_start_ns: IntArray
    late_end_ns: IntArray


def charge_waits(
    collectives: pl.DataFrame, timelines: Mapping[int, Timeline], costs: Mapping[bool, RowCost]
) -> pl.DataFrame:
    """Every wait charged to causes: ``step, instance, layer, culprit, cause, charged_ns, cost_ns``.

    ``collectives``: ``Alignment.collectives`` sorted by instance. ``charged_ns`` sums to the arrival waits, ``cost_ns`` to the
    removable waits.
    """
    rows = collectives.sort("instance", "rank").with_row_index("row")
    intervals = _intervals(rows, timelines)
    if len(intervals.row) == 0:
        return pl.DataFrame(schema=_CHARGES)
    shares = _shares(rows, intervals, timelines, costs)
    return _replay(rows, intervals, shares)


_CHARGES = {
    "step": pl.Int64, "instance": pl.Int64, "layer": pl.Int32, "culprit": pl.Int64, "cause": pl.String,
    "charged_ns": pl.Float64, "cost_ns": pl.Float64,
}  # fmt: skip


def _intervals(rows: pl.DataFrame, timelines: Mapping[int, Timeline]) -> Intervals:
    """Walk the collectives in time order, remembering each pair's last common one."""
    ranks = sorted(timelines)
    position = {rank: index for index, rank in enumerate(ranks)}
    begin = np.array([timelines[rank].edges_ns[0] for rank in ranks], dtype=np.int64)
    last_end = np.repeat(begin[:, None], len(ranks), axis=1)
    out: list[tuple[IntArray, ...]] = []
    order = rows.group_by("instance").agg(pl.col("start_ns").max(), pl.col("row").first(), pl.len()).sort("start_ns")
    rank = rows["rank"].replace_strict(position, return_dtype=pl.Int64).to_numpy()
    late = rows["late_rank"].replace_strict(position, default=-1, return_dtype=pl.Int64).fill_null(-1).to_numpy()
    start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    for first, size in order.select("row", "len").rows():
        part = np.arange(first, first + size)
        members = rank[part]
        waiting = part[late[part] >= 0]
        if len(waiting):
            i, k = rank[waiting], late[waiting]
            start_of = np.full(len(ranks), 0, dtype=np.int64)
            start_of[members] = start[part]
            out.append((waiting, i, k, last_end[i, k], start[waiting], last_end[k, i], start_of[k]))
        if size > 1:
            last_end[np.ix_(members, members)] = end[part][:, None]
    if not out:
        return Intervals(*(np.zeros(0, dtype=np.int64),) * 7)
    row, i, k, *bounds = (np.concatenate(column) for column in zip(*out, strict=True))
    names = np.array(ranks, dtype=np.int64)
    return Intervals(row, names[i], names[k], *bounds)


def _shares(
    rows: pl.DataFrame, at: Intervals, timelines: Mapping[int, Timeline], costs: Mapping[bool, RowCost]
) -> FloatArray:
    """[n, causes]: what share of each wait every cause explains; rows sum to 1."""
    late = _spent(at.late, at.late_start_ns, at.late_end_ns, timelines)
    waiter = _spent(at.waiter, at.waiter_start_ns, at.waiter_end_ns, timelines)
    excess = np.maximum(late - waiter, 0.0)
    by_tokens = np.minimum(_token_excess(rows, at, timelines, costs), excess[:, Activity.TOKEN_WORK])
    cause = np.zeros((len(at.row), len(CAUSES)))
    cause[:, CAUSES.index("expert_load")] = by_tokens
    cause[:, CAUSES.index("slow_rank")] = excess[:, Activity.TOKEN_WORK] - by_tokens + excess[:, Activity.OTHER_COMPUTE]
    cause[:, CAUSES.index("memory")] = excess[:, Activity.MEMORY]
    cause[:, CAUSES.index("host")] = excess[:, Activity.HOST]
    cause[:, CAUSES.index("slow_network")] = excess[:, Activity.TRANSFER]
    cause[:, CAUSES.index("upstream_wait")] = excess[:, Activity.WAIT]
    cause[:, CAUSES.index("unexplained")] = excess[:, Activity.DEPENDENCY]
    total = cause.sum(axis=1)
    cause[total < MIN_EXPLAINED_NS] = 0.0
    cause[total < MIN_EXPLAINED_NS, CAUSES.index("unexplained")] = 1.0
    return cause / cause.sum(axis=1, keepdims=True)


def _spent(ranks: IntArray, start_ns: IntArray, end_ns: IntArray, timelines: Mapping[int, Timeline]) -> FloatArray:
    spent = np.zeros((len(ranks), len(Activity)))
    for rank in np.unique(ranks):
        mine = np.flatnonzero(ranks == rank)
        low = start_ns[mine]
        spent[mine] = timelines[int(rank)].spent_ns(low, np.maximum(low, end_ns[mine]))
    return spent


def _token_excess(
    rows: pl.DataFrame, at: Intervals, timelines: Mapping[int, Timeline], costs: Mapping[bool, RowCost]
) -> FloatArray:
    """What the late rank's extra rows cost at the fitted price of a row; the whole excess where no price is known."""
    more = np.zeros(len(at.row))
    for ranks, low, high, sign in (
        (at.late, at.late_start_ns, at.late_end_ns, 1.0),
        (at.waiter, at.waiter_start_ns, at.waiter_end_ns, -1.0),
    ):
        for rank in np.unique(ranks):
            mine = np.flatnonzero(ranks == rank)
            more[mine] += sign * timelines[int(rank)].rows_received(low[mine] - 1, high[mine])
    backward = rows["backward"].fill_null(False).to_numpy()[at.row]
    price = np.array([costs[bool(b)].ns_per_row if bool(b) in costs else np.inf for b in backward])
    positive = np.maximum(more, 0.0)
    return np.where(positive > 0, positive * price, 0.0)


def _replay(rows: pl.DataFrame, at: Intervals, shares: FloatArray) -> pl.DataFrame:
    """Backward in time: what a wait passes on goes to the late rank's own waits in the interval, in proportion.

    Entries stand in the order of the walk, so a wait passes on only to earlier ones and nothing is lost.
    """
    arrival = rows["arrival_wait_ns"].to_numpy().astype(np.float64)[at.row]
    removable = rows["removable_wait_ns"].to_numpy().astype(np.float64)[at.row]
    inflow = np.zeros((len(at.row), 2))
    passes_on = shares[:, CAUSES.index("upstream_wait")] > 0
    by_rank = _waits_by_rank(at)
    for entry in np.flatnonzero(passes_on)[::-1]:
        targets = _within(by_rank, int(at.late[entry]), at.late_start_ns[entry], at.late_end_ns[entry], at)
        targets = targets[targets < entry]
        weight = arrival[targets]
        if len(targets) == 0 or weight.sum() <= 0:
            continue
        share = shares[entry, CAUSES.index("upstream_wait")]
        amount = share * (np.array([arrival[entry], removable[entry]]) + inflow[entry])
        inflow[targets] += weight[:, None] / weight.sum() * amount
        shares[entry, CAUSES.index("upstream_wait")] = 0.0
    return _table(rows, at, shares, arrival + inflow[:, 0], removable + inflow[:, 1])


def _waits_by_rank(at: Intervals) -> dict[int, IntArray]:
    """Entries of each waiting rank, sorted by when its wait began."""
    order = np.lexsort((at.waiter_end_ns, at.waiter))
    ranks, first = np.unique(at.waiter[order], return_index=True)
    return dict(zip(ranks.tolist(), np.split(order, first[1:]), strict=True))


def _within(by_rank: Mapping[int, IntArray], rank: int, low_ns: int, high_ns: int, at: Intervals) -> IntArray:
    entries = by_rank.get(rank)
    if entries is None:
        return np.zeros(0, dtype=np.int64)
    began = at.waiter_end_ns[entries]
    return entries[np.searchsorted(began, low_ns, side="left") : np.searchsorted(began, high_ns, side="left")]


def _table(
    rows: pl.DataFrame, at: Intervals, shares: FloatArray, charged: FloatArray, cost: FloatArray
) -> pl.DataFrame:
    entry, cause = np.nonzero(shares > 0)
    picked = rows.select("step", "instance", "layer")[at.row[entry]]
    return conform(
        picked.with_columns(
            culprit=pl.Series(at.late[entry]),
            cause=pl.Series(_names(cause)),
            charged_ns=pl.Series(shares[entry, cause] * charged[entry]),
            cost_ns=pl.Series(shares[entry, cause] * cost[entry]),
        ),
        _CHARGES,
    )


def _names(cause: npt.NDArray[np.int64]) -> list[str]:
    return [CAUSES[index] for index in cause]
