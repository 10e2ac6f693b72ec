"""Slow links, from who leaves an all-to-all when.

With equal links a rank leaves when the fullest of the ports that its transfers cross is done. A rank (or host) whose
ports are slower holds up exactly those that exchange with it, each by as much as it exchanges. So for every rank of
a group it is tried how well the ends of calm exchanges are explained by slower ports of that rank, and the best
explanation is kept where it leaves far less unexplained than equal links and than any other rank does.

How much slower needs transfers that don't cross the slow port: where some ranks have none with it (those of its own
host, in a group across hosts), their ends tell the usual speed. Where all have, only the product (usual speed x
factor) is in the traces: any usual speed from the fastest that the ends allow upwards gives the same trace. Then the
usual speed is taken from groups beside it, from a baseline, or from the data sheet, and the result says from which;
with none of them the factor is the largest that the ends allow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from moescope.align.exchanges import ACROSS, CELLS_AT_ONCE, Exchanges, FloatArray, exchanges

FACTORS = (0.8, 0.65, 0.5, 0.4, 0.3, 0.2, 0.12)
"""Speeds that are tried, as shares of the usual one."""
MAX_FACTOR = 0.85
"""A link is slow below this share of the usual speed."""
LEFT = 0.6
"""The explanation must leave at most this share of the deviation that equal links leave,"""
RUNNER_UP = 0.85
"""and at most this share of what the next best rank's leaves."""
MIN_EXCHANGES = 4
MIN_ENDS = 24
MAX_EXCHANGES = 96
"""Of one group that are looked at."""
MIN_FREE_SHARE = 0.1
"""Share of the ends that no slow port holds up, from which on these tell the usual speed."""

DATA_SHEET = {r"H100|H200|H800|H20\b": 370.0, r"A100": 240.0, r"B200|GB200": 720.0}
"""Bytes per ns that a device's links within a host carry one way in NCCL's collectives, by the device's name: the
figures of torch's communication model (torch/_inductor/comm_analysis.py); H200 has the links of H100."""


@dataclass(frozen=True, slots=True)
class SlowLink:
    """Ports that carry less than those of the other ranks."""

    tier: str
    members: tuple[int, ...]
    """Of the group whose exchanges show it."""
    ranks: tuple[int, ...]
    """One rank, or all of the group on one host."""
    factor: float
    """Share of the usual speed."""
    rate_bytes_per_ns: float
    """What the slow ports carry."""
    compared_with: str
    """``ranks that do not use it``, ``groups beside it``, ``baseline``, ``data sheet``; ``nothing``: the factor is at
    most this."""
    num_exchanges: int


@dataclass(frozen=True, slots=True)
class _Ends:
    """The calm exchanges of one group: when their ranks left, and what would explain it."""

    tier: str
    members: tuple[int, ...]
    after_ns: FloatArray
    """[c, n] from the last arrival to each end, latency taken off; NaN where a rank left no trace."""
    even: FloatArray
    """[c, n] ``Exchanges.paced_bytes`` at equal speeds."""
    through: Mapping[tuple[int, ...], FloatArray]
    """By candidate [c, n]: what its ports have moved when their last transfer with the rank ends, 0 without any."""
    num_exchanges: int


@dataclass(frozen=True, slots=True)
class _Fit:
    """One candidate's best factor, and what it leaves unexplained."""

    ranks: tuple[int, ...]
    factor: float
    deviation: float
    slow_rate: float = 0.0
    usual_rate: float | None = None
    """Bytes per ns; None where no end tells it."""


def speeds(part: Exchanges, slow: Sequence[SlowLink]) -> FloatArray:
    """[n]: relative speed of every member's ports."""
    speed = np.ones(len(part.members))
    for link in slow:
        if link.tier == part.tier:
            speed[np.isin(part.members, link.ranks)] *= link.factor
    return speed


def find_slow_links(
    calm: pl.DataFrame,
    host_of_rank: Mapping[int, str],
    latency_ns: Mapping[str, float],
    usual: Mapping[str, tuple[float, str]],
) -> tuple[SlowLink, ...]:
    """Slow links, at most one rank or host per group.

    ``calm``: rows of all-to-alls in which all arrived nearly together (``transfer.calm``); ``latency_ns``: by tier;
    ``usual``: by tier the usual speed in bytes per ns where it is known from outside, and from where.
    """
    fits = [(ends, _best(ends)) for ends in _ends(calm, host_of_rank, latency_ns)]
    rates: dict[str, list[float]] = {}
    for ends, fit in fits:
        if fit is None:
            rates.setdefault(ends.tier, []).append(_rate(ends.after_ns, ends.even))
    beside = {tier: float(np.median(values)) for tier, values in rates.items()}
    found = [_settled(ends, fit, usual.get(ends.tier), beside.get(ends.tier)) for ends, fit in fits if fit is not None]
    return tuple(link for link in found if link.factor <= MAX_FACTOR)


def data_sheet(device: str) -> float | None:
    """Bytes per ns of a device's links within a host, None where unknown."""
    return next((rate for pattern, rate in DATA_SHEET.items() if re.search(pattern, device)), None)


def _ends(calm: pl.DataFrame, host_of_rank: Mapping[int, str], latency_ns: Mapping[str, float]) -> Iterator[_Ends]:
    large = calm.filter(~pl.col("is_tiny"))
    most = (CELLS_AT_ONCE // pl.col("members").list.len() ** 2).clip(MIN_EXCHANGES, MAX_EXCHANGES)
    few = large.filter(pl.col("instance").rank("dense").over("members", "tier") <= most)
    after = few["after_ns"].cast(pl.Float64).to_numpy()
    parts: dict[tuple[tuple[int, ...], str], list[_Ends]] = {}
    for part in exchanges(few, host_of_rank):
        one = _of_part(part, after, host_of_rank, latency_ns.get(part.tier, 0.0))
        parts.setdefault((one.members, part.tier), []).append(one)
    for pieces in parts.values():
        whole = pieces[0] if len(pieces) == 1 else _joined(pieces)
        if whole.num_exchanges >= MIN_EXCHANGES and np.isfinite(whole.after_ns).sum() >= MIN_ENDS:
            yield whole


def _joined(pieces: Sequence[_Ends]) -> _Ends:
    return replace(
        pieces[0],
        after_ns=np.concatenate([piece.after_ns for piece in pieces]),
        even=np.concatenate([piece.even for piece in pieces]),
        through={key: np.concatenate([piece.through[key] for piece in pieces]) for key in pieces[0].through},
        num_exchanges=sum(piece.num_exchanges for piece in pieces),
    )


def _of_part(part: Exchanges, after_ns: FloatArray, host_of_rank: Mapping[int, str], latency_ns: float) -> _Ends:
    even = part.paced_bytes()
    present = (part.row >= 0) & (even > 0)
    after = np.where(present, np.maximum(after_ns[part.row] - latency_ns, 1.0), np.nan)
    told = present.sum(axis=1) > 1
    through = {ranks: moved[told] for ranks, moved in _through(part, host_of_rank).items()}
    members = tuple(part.members.tolist())
    return _Ends(part.tier, members, after[told], np.where(present, even, 1.0)[told], through, int(told.sum()))


def _through(part: Exchanges, host_of_rank: Mapping[int, str]) -> dict[tuple[int, ...], FloatArray]:
    """``_Ends.through`` for every rank of the group and, across hosts, for all its ranks on one host."""
    sent, received = part.moved_by_sender(), part.moved_by_receiver()
    ranks = [int(rank) for rank in part.members]
    through: dict[tuple[int, ...], FloatArray] = {}
    for k, rank in enumerate(ranks):
        to, back = part.bytes[:, k] > 0, part.bytes[:, :, k] > 0
        moved = np.maximum(np.where(to, sent[:, k], 0), np.where(back, received[:, :, k], 0))
        moved[:, k] = moved.max(axis=1)
        through[(rank,)] = moved
    hosts = sorted({host_of_rank.get(rank, "") for rank in ranks}) if part.tier == ACROSS else []
    for host in hosts:
        together = tuple(rank for rank in ranks if host_of_rank.get(rank, "") == host)
        if len(together) > 1:
            through[together] = np.maximum.reduce([through[(rank,)] for rank in together])
    return through


def _deviation(after_ns: FloatArray, moved: FloatArray) -> float:
    """Mean absolute deviation of the logarithms of the ranks' rates from the mean of their exchange.

    What an exchange's ends have in common (a busy moment of the network) tells no rank from another.
    """
    log = np.log(after_ns / moved)
    return float(np.nanmean(np.abs(log - np.nanmean(log, axis=1, keepdims=True))))


def _rate(after_ns: FloatArray, moved: FloatArray) -> float:
    rates = (moved / after_ns)[~np.isnan(after_ns)]
    return float(np.median(rates)) if len(rates) else 0.0


def _best(ends: _Ends) -> _Fit | None:
    """The candidate whose slow ports explain the ends best; none where equal links do nearly as well."""
    equal = _deviation(ends.after_ns, ends.even)
    fits = []
    for ranks, through in ends.through.items():
        tried = [(_deviation(ends.after_ns, np.maximum(ends.even, through / f)), f) for f in FACTORS]
        deviation, factor = min(tried)
        fits.append(_refined(ends, _Fit(ranks, factor, deviation), through))
    fits.sort(key=lambda fit: (fit.deviation, len(fit.ranks)))
    best = fits[0]
    rivals = [fit.deviation for fit in fits[1:] if not set(fit.ranks) & set(best.ranks)]
    if best.deviation > LEFT * equal or (rivals and best.deviation > RUNNER_UP * min(rivals)):
        return None
    return best


def _refined(ends: _Ends, fit: _Fit, through: FloatArray) -> _Fit:
    """The factor from the rates of held-up ends and of free ones; only the held-up rate where hardly any is free."""
    known = ~np.isnan(ends.after_ns)
    held, free = known & (through / fit.factor > ends.even), known & (through / fit.factor <= ends.even)
    slow_rate = _rate(ends.after_ns[held], through[held])
    if free.sum() < MIN_FREE_SHARE * known.sum() or not held.any():
        return replace(fit, slow_rate=slow_rate)
    usual = _rate(ends.after_ns[free], ends.even[free])
    factor = slow_rate / usual
    deviation = _deviation(ends.after_ns, np.maximum(ends.even, through / factor))
    if deviation <= fit.deviation:
        return replace(fit, factor=factor, deviation=deviation, slow_rate=slow_rate, usual_rate=usual)
    return replace(fit, slow_rate=slow_rate, usual_rate=slow_rate / fit.factor)


def _settled(ends: _Ends, fit: _Fit, outside: tuple[float, str] | None, beside: float | None) -> SlowLink:
    """The factor against the best knowledge of the usual speed."""
    through = ends.through[fit.ranks]
    largest = float(np.quantile(through[through > 0] / ends.even[through > 0], 0.05))
    factor, source = min(largest, 1.0), "nothing"
    known = [(fit.usual_rate, "ranks that do not use it"), (beside, "groups beside it"), outside or (None, "")]
    for rate, name in known:
        if rate is not None and fit.slow_rate / rate <= max(factor, MAX_FACTOR):
            factor, source = fit.slow_rate / rate, name
            break
    return SlowLink(ends.tier, ends.members, fit.ranks, factor, fit.slow_rate, source, ends.num_exchanges)
