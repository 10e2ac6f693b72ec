"""Bytes that each rank exchanges through the slowest links of an all-to-all.

In a group that spans hosts these are the bytes to and from other hosts, in a group within one host those to and
from other ranks. Splits are rows per peer; a row's size is the total over the rows. Without splits an equal share
per peer is assumed, as in an equal-split exchange.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

FloatArray = npt.NDArray[np.float64]


def with_volume(rows: pl.DataFrame, host_of_rank: Mapping[int, str]) -> pl.DataFrame:
    """Adds what every all-to-all moves through its slowest links; null where unknown and for other kinds.

    Per rank ``remote_bytes`` (the larger of sent and received) and ``slowest_peer_bytes`` (the most of the rank itself
    and of the peers it reaches through those links, which is what its own end waits for); per instance
    ``bottleneck_bytes`` (the most of any rank), ``mean_bytes``, ``bottleneck_rank`` and ``bottleneck_receives`` (it
    receives more than it sends). ``rows``: matched collectives with ``tier``.
    """
    outgoing, incoming = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    exchanged = rows.with_row_index("at").filter(pl.col("kind") == "all_to_all")
    for (members, rank), part in exchanged.group_by(["members", "rank"], maintain_order=True):
        is_remote = _is_remote(list(members), int(rank), part["tier"][0], host_of_rank)
        outgoing[part["at"].to_numpy()] = _through(part, "in_splits", "send_bytes", is_remote)
        incoming[part["at"].to_numpy()] = _through(part, "out_splits", "recv_bytes", is_remote)
    known = rows.with_columns(
        remote_bytes=pl.Series(np.fmax(outgoing, incoming)).fill_nan(None), receives_more=pl.Series(incoming > outgoing)
    )
    complete = pl.col("remote_bytes").is_not_null().all().over("instance")
    known = _with_slowest_peer(known, host_of_rank)
    return known.with_columns(
        bottleneck_bytes=pl.when(complete).then(pl.col("remote_bytes").max().over("instance")),
        mean_bytes=pl.when(complete).then(pl.col("remote_bytes").mean().over("instance")),
        bottleneck_rank=pl.when(complete).then(pl.col("rank").sort_by("remote_bytes").last().over("instance")),
        bottleneck_receives=pl.when(complete).then(
            pl.col("receives_more").sort_by("remote_bytes").last().over("instance")
        ),
    ).drop("receives_more")


def _with_slowest_peer(rows: pl.DataFrame, host_of_rank: Mapping[int, str]) -> pl.DataFrame:
    """The largest ``remote_bytes`` outside the rank's own host (within one host: of the other ranks) and its own."""
    hosts = {host: index for index, host in enumerate(sorted(set(host_of_rank.values())))}
    number = {rank: hosts[host] for rank, host in host_of_rank.items()}
    unit = pl.when(pl.col("tier") == "across hosts").then(pl.col("rank").replace_strict(number)).otherwise("rank")
    rows = rows.with_columns(unit=unit.cast(pl.Int64))
    most = rows.group_by("instance", "unit").agg(pl.col("remote_bytes").max()).sort("remote_bytes", descending=True)
    top = most.group_by("instance", maintain_order=True).agg(
        first=pl.col("remote_bytes").first(),
        first_unit=pl.col("unit").first(),
        second=pl.col("remote_bytes").slice(1, 1).first(),
    )
    rows = rows.join(top, on="instance", how="left", maintain_order="left")
    elsewhere = pl.when(pl.col("unit") == pl.col("first_unit")).then("second").otherwise("first")
    return rows.with_columns(slowest_peer_bytes=pl.max_horizontal("remote_bytes", elsewhere)).drop(
        "unit", "first", "first_unit", "second"
    )


def _is_remote(members: Sequence[int], rank: int, tier: str, host_of_rank: Mapping[int, str]) -> npt.NDArray[np.bool_]:
    if tier == "across hosts":
        return np.array([host_of_rank.get(member) != host_of_rank.get(rank) for member in members])
    return np.array([member != rank for member in members])


def _through(part: pl.DataFrame, splits: str, total: str, is_remote: npt.NDArray[np.bool_]) -> FloatArray:
    """Bytes of one rank's exchanges that go to (or come from) the remote members, [len(part)], NaN where unknown."""
    size = part[total].cast(pl.Float64).to_numpy()
    share = np.full(len(part), is_remote.mean())
    whole = (part[splits].list.len() == len(is_remote)).fill_null(False).to_numpy()
    if whole.any():
        table = np.stack(part.filter(pl.Series(whole))[splits].to_list()).astype(np.float64)
        rows = table.sum(axis=1)
        share[whole] = np.where(rows > 0, table @ is_remote / np.maximum(rows, 1), 0.0)
    through: FloatArray = size * share
    return through
