"""Who sent how much to whom in every all-to-all, and how ports that are shared fairly would finish with it.

What counts are the links that set the pace: in a group that spans hosts the bytes to and from other hosts, in a
group within one host those to and from other ranks. Splits are rows per peer; a row's size is the total over the
rows. Without splits (an equal exchange, or lists that the profiler cut) every rank's total is taken to be spread over
its peers as theirs are. What a rank without a trace exchanged is known from its peers.

A port that serves several transfers shares its bandwidth among them. Transfer k of sizes b_1..b_n then ends when
the port has moved ``sum_l min(b_l, b_k)`` bytes (processor sharing: of the larger ones as much has moved by then as of
k itself). A transfer crosses two ports and ends with the slower of the two; a rank leaves with its last transfer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from moescope.align.ranges import IntArray

FloatArray = npt.NDArray[np.float64]

ACROSS = "across hosts"
CELLS_AT_ONCE = 4_000_000
"""Pairs of ranks held at one time."""


@dataclass(frozen=True, slots=True)
class Exchanges:
    """Some all-to-alls of one group."""

    members: IntArray
    """[n] ranks."""
    tier: str
    row: IntArray
    """[c, n]: row of the table, -1 where the rank left no trace."""
    bytes: FloatArray
    """[c, n, n] from i to j over the links that set the pace; NaN in exchanges of unknown size."""

    def sent(self) -> FloatArray:
        """[c, n] bytes over the links that set the pace."""
        return np.asarray(self.bytes.sum(axis=2))

    def received(self) -> FloatArray:
        """[c, n]."""
        return np.asarray(self.bytes.sum(axis=1))

    def moved_by_sender(self) -> FloatArray:
        """[c, n, n]: what i's sending port has moved when its transfer to j ends."""
        return shared_port(self.bytes)

    def moved_by_receiver(self) -> FloatArray:
        """[c, n, n]: what j's receiving port has moved when the transfer from i ends."""
        return shared_port(self.bytes.swapaxes(1, 2)).swapaxes(1, 2)

    def paced_bytes(self, speed: FloatArray | None = None) -> FloatArray:
        """[c, n]: what the fullest port of a rank's transfers has moved when the last of them ends.

        ``speed``: [n] relative speeds of the members' ports; then in bytes at speed 1.
        """
        sender, receiver = self.moved_by_sender(), self.moved_by_receiver()
        if speed is not None:
            sender, receiver = sender / speed[:, None], receiver / speed[None, :]
        moved = np.where(self.bytes == 0, 0.0, np.maximum(sender, receiver))
        return np.asarray(np.maximum(moved.max(axis=2), moved.max(axis=1)))


def shared_port(sizes: FloatArray) -> FloatArray:
    """[..., n]: bytes that a port shared by transfers of these sizes has moved when each of them ends."""
    order = np.argsort(sizes, axis=-1, kind="stable")
    ordered = np.take_along_axis(sizes, order, axis=-1)
    waiting = np.arange(sizes.shape[-1] - 1, -1, -1)
    moved = np.cumsum(ordered, axis=-1) + waiting * ordered
    out = np.empty_like(sizes)
    np.put_along_axis(out, order, moved, axis=-1)
    return out


def exchanges(rows: pl.DataFrame, host_of_rank: Mapping[int, str]) -> Iterator[Exchanges]:
    """All all-to-alls among ``rows`` (matched collectives with ``tier``), group by group, a few at a time."""
    exchanged = rows.with_row_index("at").filter(pl.col("kind") == "all_to_all")
    hosts = {host: index for index, host in enumerate(sorted(set(host_of_rank.values())))}
    for _, part in exchanged.group_by(["members", "tier"], maintain_order=True):
        members = np.array(part["members"][0].to_list(), dtype=np.int64)
        host = np.array([hosts.get(host_of_rank.get(int(rank), ""), -1) for rank in members])
        tier = str(part["tier"][0])
        paced = host[:, None] != host[None] if tier == ACROSS else ~np.eye(len(members), dtype=bool)
        few = max(CELLS_AT_ONCE // max(len(members) ** 2, 1), 1)
        instances = part["instance"].unique().sort()
        for first in range(0, len(instances), few):
            chosen = part.filter(pl.col("instance").is_in(instances[first : first + few].implode()))
            yield _of_group(chosen, members, tier, paced)


def _of_group(part: pl.DataFrame, members: IntArray, tier: str, paced: npt.NDArray[np.bool_]) -> Exchanges:
    _, exchange = np.unique(part["instance"].to_numpy(), return_inverse=True)
    position = np.searchsorted(members, part["rank"].to_numpy())
    shape = int(exchange.max()) + 1, len(members)
    row = np.full(shape, -1)
    row[exchange, position] = part["at"].to_numpy()
    totals = np.full((2, *shape), np.nan)
    by_peer = np.full((2, *shape, len(members)), np.nan)
    for way, (splits, size) in enumerate((("in_splits", "send_bytes"), ("out_splits", "recv_bytes"))):
        totals[way][exchange, position] = part[size].cast(pl.Float64).to_numpy()
        by_peer[way][exchange, position] = _per_peer(part, splits, size, len(members))
    pairs = np.where(np.isnan(by_peer[0]), by_peer[1].swapaxes(1, 2), by_peer[0])
    pairs = np.where(np.isnan(pairs), _in_proportion(*totals), pairs)
    pairs = np.where(paced, pairs, 0.0)
    unknown = np.isnan(totals[:, exchange, position]).any(axis=0)
    pairs[exchange[unknown]] = np.nan
    return Exchanges(members, tier, row, pairs)


def _per_peer(part: pl.DataFrame, splits: str, total: str, num_members: int) -> FloatArray:
    """[len(part), n] bytes of one rank's exchanges with every member by its splits, NaN without them."""
    out = np.full((len(part), num_members), np.nan)
    whole = (part[splits].list.len() == num_members).fill_null(False)
    if whole.any():
        chosen = part.filter(whole)
        table = chosen[splits].explode().to_numpy().reshape(-1, num_members).astype(np.float64)
        size = chosen[total].cast(pl.Float64).to_numpy()[:, None]
        out[whole.to_numpy()] = size * table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    return out


def _in_proportion(sent: FloatArray, received: FloatArray) -> FloatArray:
    """[c, n, n] bytes from i to j in proportion to what i sent and j received in all, [c, n]; a rank of unknown totals
    counts as an average one."""
    with np.errstate(invalid="ignore"):
        known = [np.nansum(side, axis=1, keepdims=True) / np.maximum(np.isfinite(side).sum(1, keepdims=True), 1)
                 for side in (sent, received)]  # fmt: skip
    sent, received = np.where(np.isnan(sent), known[0], sent), np.where(np.isnan(received), known[1], received)
    return np.asarray(sent[:, :, None] * received[:, None, :] / np.maximum(received.sum(axis=1), 1)[:, None, None])
