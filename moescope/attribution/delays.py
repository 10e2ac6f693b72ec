"""What made the late rank late, for every wait: the critical paths of the late rank and of the waiting one, compared.

A rank that waited in a collective continues on the path of the rank it waited for, so waits pass on through chains
of groups. For a wait of rank i for the late rank k, what k's path spent beyond i's, by activity, made it late, and
the wait is charged to those excesses in proportion (the delay rule of Boehme et al., TOPC 2016, on paths in place of
processes). Every span counts as its deviation from the median rank's span at the same point of the program, so an
excess is booked to the rank that deviates and not to all who share its path. Charges sum to the waits.

Ranks of one pipeline stage run the same program, those of another a different one. So spans are compared within a
stage, and of a wait for a rank of another stage only what the paths' excesses explain is charged to them. The rest is
the pipeline's own: stages that take different times, and a step's start and end, in which some have nothing to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from moescope.align.ranges import IntArray
from moescope.attribution.timeline import Activity, FloatArray


class Excess(IntEnum):
    """What paths are compared by."""

    EXPECTED_WORK = 0
    SLOWNESS = 1
    MEMORY = 2
    HOST = 3
    TRANSFER = 4
    VOLUME = 5
    UNKNOWN = 6
    PIPELINE = 7
    """No deviation, but what a wait for another stage is beyond them."""


CAUSE = {
    Excess.EXPECTED_WORK: "expert_load",
    Excess.SLOWNESS: "slow_rank",
    Excess.MEMORY: "memory",
    Excess.HOST: "host",
    Excess.TRANSFER: "slow_network",
    Excess.VOLUME: "volume_imbalance",
    Excess.UNKNOWN: "unexplained",
    Excess.PIPELINE: "pipeline",
}
"""The cause that an excess is charged to."""

CHARGES = {
    "step": pl.Int64, "instance": pl.Int64, "layer": pl.Int32, "culprit": pl.Int64, "cause": pl.String,
    "charged_ns": pl.Float64, "cost_ns": pl.Float64,
}  # fmt: skip

HELD_SHARE = 0.5
"""A rank is held by a late one when at least this share of its wait was removable."""
SAME_WORK = ("step", "stage", "turn", "kind")
"""Rows that agree in these are the same point of the program on several ranks."""
MIN_EXCESS_NS = 1.0
MIN_NET_SHARE = 0.25
"""Signed excesses are trusted where their sum is at least this share of the sum of their sizes."""


def excesses(
    rows: pl.DataFrame, spent: FloatArray, work: FloatArray, expected: FloatArray, host_is_device: Mapping[int, bool]
) -> FloatArray:
    """[len(rows), excesses]: each row's span and its transfer as deviations from the median rank's.

    ``rows``, ``spent``: ``spans.spans``; ``work``, ``expected``: measured and expected time of expert work
    (``expert_work``).
    """
    is_work = rows["is_expert_work"].to_numpy()
    on_host = rows["rank"].replace_strict(dict(host_is_device), return_dtype=pl.Boolean).to_numpy()
    compute = spent[:, Activity.TOKEN_WORK] + spent[:, Activity.OTHER_COMPUTE]
    column = np.zeros((len(rows), len(Excess)))
    column[:, Excess.EXPECTED_WORK] = np.where(is_work, expected, 0.0)
    column[:, Excess.SLOWNESS] = np.where(is_work, work - expected, compute)
    column[:, Excess.MEMORY] = spent[:, Activity.MEMORY]
    column[:, Excess.HOST] = np.where(is_work & on_host, 0.0, spent[:, Activity.HOST])
    column[:, Excess.TRANSFER] = spent[:, Activity.TRANSFER]
    column[:, Excess.UNKNOWN] = spent[:, Activity.DEPENDENCY] + spent[:, Activity.WAIT]
    return column - _medians(rows, column)


def _medians(rows: pl.DataFrame, column: FloatArray) -> FloatArray:
    """The median over a stage's ranks at the same turn of the same step, for each row."""
    names = [f"e{index}" for index in range(column.shape[1])]
    table = rows.select(SAME_WORK).hstack(pl.DataFrame(column, schema=names))
    return table.select(pl.col(names).median().over(SAME_WORK)).to_numpy()


def charge_waits(rows: pl.DataFrame, deviation: FloatArray, begin_ns: Mapping[int, int]) -> pl.DataFrame:
    """Every wait charged to causes: ``step, instance, layer, culprit, cause, charged_ns, cost_ns``.

    ``rows``: ``spans.spans``, in time order; ``deviation``: ``excesses``; ``begin_ns``: when each rank's window begins.
    ``charged_ns`` sums to the arrival waits; ``cost_ns`` to the removable waits that no compute hides.
    """
    ranks = sorted(rows["rank"].unique().to_list())
    position = {rank: index for index, rank in enumerate(ranks)}
    rank = rows["rank"].replace_strict(position, return_dtype=pl.Int64).to_numpy()
    late = rows["late_rank"].replace_strict(position, default=-1, return_dtype=pl.Int64).fill_null(-1).to_numpy()
    wait = rows["arrival_wait_ns"].to_numpy().astype(np.float64)
    exposed = np.minimum(rows["removable_wait_ns"].to_numpy(), rows["exposed_wait_ns"].to_numpy()).astype(np.float64)
    held_rows = is_held(rows)
    link, volume = transfer_deviation(rows.with_columns(is_held=held_rows))
    bottleneck = (
        rows["bottleneck_rank"].replace_strict(position, default=-1, return_dtype=pl.Int64).fill_null(-1).to_numpy()
    )
    bottleneck = np.where(bottleneck >= 0, bottleneck, rank)
    held = held_rows.to_numpy()
    path = np.zeros((len(ranks), len(ranks), len(Excess)))
    every = np.arange(len(ranks))
    stage = np.zeros(len(ranks), dtype=np.int64)
    stage[rank] = rows["stage"].to_numpy()
    path[every, every, Excess.UNKNOWN] = _late_beginning(begin_ns, ranks)
    charged: list[tuple[IntArray, FloatArray]] = []
    instance = rows["instance"].to_numpy()
    firsts: list[int] = np.flatnonzero(np.diff(instance, prepend=-1)).tolist()
    for first, last in pairwise([*firsts, len(rows)]):
        part = np.arange(first, last)
        members = rank[part]
        path[members, members] += deviation[part]
        waiting = part[late[part] >= 0]
        if len(waiting):
            pair = rank[waiting], late[waiting]
            is_apart = stage[pair[0]] != stage[pair[1]]
            charged.append((np.array([first]), _charge(path, pair, wait[waiting], exposed[waiting], is_apart)))
        jumps = part[held[part] & (late[part] >= 0)]
        path[rank[jumps]] = path[late[jumps]]
        path[members, members, Excess.TRANSFER] += link[part]
        path[members, bottleneck[part], Excess.VOLUME] += volume[part]
    return _table(rows, charged, np.array(ranks, dtype=np.int64))


def _late_beginning(begin_ns: Mapping[int, int], ranks: list[int]) -> FloatArray:
    """How much later than the median rank each rank began its window: what happened before it is not known."""
    begin = np.array([begin_ns[rank] for rank in ranks], dtype=np.int64)
    since_first = (begin - begin.min(initial=np.iinfo(np.int64).max)).astype(np.float64)
    deviation: FloatArray = since_first - np.median(since_first) if len(ranks) else since_first
    return deviation


def is_held(rows: pl.DataFrame) -> pl.Series:
    """Whether a row's end was put off by the late rank, so that its path goes on from there.

    A rank whose own transfers with those already there last as long anyway waits without losing by it; its path goes on
    from its own arrival.
    """
    share = pl.col("removable_wait_ns") / pl.col("arrival_wait_ns").clip(1)
    return rows.select(pl.col("is_blocking") & (share >= HELD_SHARE)).to_series()


def transfer_deviation(rows: pl.DataFrame) -> tuple[FloatArray, FloatArray]:
    """Each row's transfer against the median of the same turn, ns: (what its links, what its volume adds to a path).

    A transfer begins where the path goes on: at the last arrival, at its own for a rank that it did not hold. The
    volume's part is the deviation of what the transfer model expects for the bytes; all of it goes to the links
    where there is no model.
    """
    turn = list(SAME_WORK)
    is_modelled = pl.col("even_links_ns").is_not_null()
    from_own = pl.col("is_blocking") & ~pl.col("is_held")
    spent = pl.col("transfer_ns") + pl.when(from_own).then("arrival_wait_ns").otherwise(0)
    expected = pl.when(is_modelled).then(pl.min_horizontal("even_links_ns", spent)).otherwise(0.0)
    whole = spent - spent.median().over(turn)
    table = rows.select(volume=(expected - expected.median().over(turn)).cast(pl.Float64), whole=whole.cast(pl.Float64))
    volume = table["volume"].to_numpy()
    return table["whole"].to_numpy() - volume, volume


def _charge(
    path: FloatArray,
    pair: tuple[IntArray, IntArray],
    wait: FloatArray,
    exposed: FloatArray,
    is_apart: npt.NDArray[np.bool_],
) -> FloatArray:
    """[ranks, excesses, 2]: the waits of one collective (arrival, exposed removable) by culprit and excess.

    Excesses count with their sign: a rank that is late by its tokens although its hardware was faster this time
    is charged more for the one and less for the other, so that noise cancels over the collectives. Where excesses
    cancel almost wholly, shares of their small sum would blow them up; there only the positive ones count. ``pair``:
    ranks that wait and those they wait for; where ``is_apart``, these are in different stages.
    """
    waiter, late = pair
    beyond = path[late] - path[waiter]
    by_activity = beyond.sum(axis=1)
    net = by_activity.sum(axis=1)
    cancels = net < MIN_NET_SHARE * np.abs(by_activity).sum(axis=1)
    by_activity[cancels] = np.maximum(by_activity[cancels], 0.0)
    by_culprit = np.clip(beyond, 0.0, np.maximum(path[late], 0.0))  # a rank ahead of the median delays nobody
    nobody = by_culprit.sum(axis=1) <= 0
    row, activity = np.nonzero(nobody)
    by_culprit[row, late[row], activity] = 1.0
    weight = by_culprit / by_culprit.sum(axis=1, keepdims=True) * by_activity[:, None, :]
    total = weight.sum(axis=(1, 2))
    unknown = total < MIN_EXCESS_NS
    weight[unknown] = 0.0
    weight[unknown, late[unknown], Excess.UNKNOWN] = 1.0
    weight /= weight.sum(axis=(1, 2), keepdims=True)
    explained = np.where(is_apart, np.clip(net / np.maximum(wait, 1.0), 0.0, 1.0), 1.0)
    weight *= explained[:, None, None]
    weight[np.arange(len(late)), late, Excess.PIPELINE] = 1 - explained
    return np.stack((np.tensordot(wait, weight, axes=(0, 0)), np.tensordot(exposed, weight, axes=(0, 0))), axis=-1)


def _table(rows: pl.DataFrame, charged: list[tuple[IntArray, FloatArray]], ranks: IntArray) -> pl.DataFrame:
    if not charged:
        return pl.DataFrame(schema=CHARGES)
    first, culprit, excess, values = [], [], [], []
    for at, amounts in charged:
        who, what = np.nonzero(amounts[:, :, 0])
        first.append(np.repeat(at, len(who)))
        culprit.append(ranks[who])
        excess.append(what)
        values.append(amounts[who, what])
    amount = np.concatenate(values)
    causes = [CAUSE[Excess(index)] for index in np.concatenate(excess)]
    at_fault = pl.Series(np.concatenate(culprit)).set(pl.Series(causes) == CAUSE[Excess.PIPELINE], None)
    return rows.select("step", "instance", "layer")[np.concatenate(first)].with_columns(
        culprit=at_fault,
        cause=pl.Series(causes, dtype=pl.String),
        charged_ns=pl.Series(amount[:, 0]),
        cost_ns=pl.Series(amount[:, 1]),
    )
