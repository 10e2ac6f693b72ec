"""The same collective on every rank that took part in it.

Collectives are matched by group and sequence number where the trace recorded one, else by order within the step;
either way the match is verified (same kind, same type, and what rank i sent to rank j is what rank j received
from rank i). Where the order does not verify, the sequences are aligned, so that a lost or extra event on one rank
shifts nothing. A group in which less than 99 % agree, or in which most find no counterpart, is refused with the
reason. Nothing is paired by time.

Point-to-point messages are matched in each pair of ranks and each direction by their order, which NCCL keeps; their
sequence numbers count a rank's own messages and agree with nobody's. Messages of a pipeline have one size, so where one
side lost some, which ones cannot be told: those of that step stay unmatched.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from moescope.align.pairs import with_pairs
from moescope.align.sequence import MAX_CELLS, align

MIN_AGREEMENT = 0.99
MIN_SHARED = 0.5
"""A group in which fewer collectives find a counterpart, in steps that several of its ranks recorded, is refused."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A group whose collectives could not be matched, and why."""

    group: str
    reason: str
    num_collectives: int


@dataclass(frozen=True, slots=True)
class Matched:
    """``rows``: the input's rows with ``instance`` (Int64), ``sequence`` (Int64, order within the group) and ``events``
    (of all kernels of the collective on that rank) added."""

    rows: pl.DataFrame
    refusals: tuple[Refusal, ...]
    num_unmatched: int
    """Collectives that no other rank's trace shows although the group's ranks are there."""


def match(rows: pl.DataFrame) -> Matched:
    """Match all ranks' collectives.

    ``rows``: the columns of ``instances.SCHEMA`` and ``rank, window, step, members, group``. Point-to-point
    messages whose peer was not recorded are left out.
    """
    kept, refusals, next_instance = [], [], 0
    rows = rows.filter((pl.col("kind") != "p2p") | pl.col("peer").is_not_null())
    rows = with_pairs(rows).with_columns(step_key=pl.col("step").fill_null(-1), events=pl.concat_list("event"))
    rows = _with_channel(rows)
    for _, group in rows.group_by(["members", "channel", "sender"], maintain_order=True):
        part = _match_group(group.sort("rank", "start_ns"), next_instance)
        reason = _reason_to_refuse(part)
        if reason is not None:
            refusals.append(Refusal(group["group"][0], reason, len(part)))
            continue
        kept.append(part)
        next_instance = int(part["instance"].max() or 0) + 1  # type: ignore[arg-type]
    if not kept:
        empty = rows.head(0).with_columns(instance=pl.lit(0, pl.Int64), sequence=pl.lit(0, pl.Int64))
        return Matched(empty.drop("step_key", "channel", "sender"), tuple(refusals), 0)
    matched = _number(pl.concat(kept))
    present = rows["rank"].n_unique()
    alone = matched.filter(pl.len().over("instance") == 1).filter(pl.col("members").list.len() > 1)
    return Matched(matched.drop("step_key", "channel", "sender"), tuple(refusals), len(alone) if present > 1 else 0)


def _with_channel(rows: pl.DataFrame) -> pl.DataFrame:
    """Adds ``channel``: the group's recorded name, which tells groups of the same ranks apart; null where ranks do not
    know the same names."""
    known = rows.group_by("members", "rank").agg(names=pl.col("group_name").unique().sort())
    known = known.group_by("members").agg(same=pl.col("names").n_unique() == 1)
    rows = rows.join(known, on="members", how="left", maintain_order="left")
    return rows.with_columns(channel=pl.when("same").then("group_name")).drop("same")


def _reason_to_refuse(part: pl.DataFrame) -> str | None:
    agreement = _agreement(part)
    if agreement < MIN_AGREEMENT:
        return f"only {agreement:.1%} of the collectives agree in kind, type and sizes between ranks"
    common = part.filter(pl.col("rank").n_unique().over("window", "step_key") > 1)
    shared = int((common.select(pl.len().over("instance")).to_series() > 1).sum())
    if shared < MIN_SHARED * len(common):
        return f"only {shared / len(common):.1%} of the collectives have a counterpart that agrees on another rank"
    return None


def _number(rows: pl.DataFrame) -> pl.DataFrame:
    """Instances renumbered by first start; ``sequence``: the recorded number, else a count within the group."""
    first = rows.group_by("instance").agg(pl.col("start_ns").min(), pl.col("group").first(), pl.col("step_key").first())
    first = first.sort("start_ns", "instance").with_columns(
        renumbered=pl.int_range(pl.len()).cast(pl.Int64), sequence=pl.int_range(pl.len()).over("group").cast(pl.Int64)
    )
    rows = rows.join(first.select("instance", "renumbered", "sequence"), on="instance", how="left")
    rows = rows.with_columns(instance="renumbered", sequence=pl.col("seq").fill_null(pl.col("sequence")))
    return rows.drop("renumbered").sort("instance", "rank")


def _match_group(group: pl.DataFrame, first_instance: int) -> pl.DataFrame:
    if group["seq"].null_count() == 0 and group["sender"].null_count():
        part = _by_sequence_number(group, first_instance)
        if _agreement(part) >= MIN_AGREEMENT:
            return part
    parts = []
    for (_, _), step in group.group_by(["window", "step_key"], maintain_order=True):
        parts.append(_by_order(step, first_instance))
        first_instance = int(parts[-1]["instance"].max() or 0) + 1  # type: ignore[arg-type]
    return pl.concat(parts)


def _by_sequence_number(group: pl.DataFrame, first_instance: int) -> pl.DataFrame:
    """Rows of one rank with the same number are kernels of one collective and become one row."""
    merged = group.group_by(["rank", "window", "seq", "kind"], maintain_order=True).agg(
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
        pl.exclude("start_ns", "end_ns", "events").first(),
        events=pl.col("event"),
    )
    numbered = merged.with_columns(
        instance=first_instance + (pl.struct("window", "seq", "kind").rank("dense").cast(pl.Int64) - 1)
    )
    return numbered.select([*group.columns, "instance"])


def _by_order(step: pl.DataFrame, first_instance: int) -> pl.DataFrame:
    by_rank = [part for _, part in step.group_by(["rank"], maintain_order=True)]
    if step["sender"].null_count() == 0 and len({len(part) for part in by_rank}) > 1:
        return step.with_columns(instance=first_instance + pl.int_range(pl.len()).cast(pl.Int64))
    reference = max(by_rank, key=len)
    next_extra = first_instance + len(reference)
    out = []
    for part in by_rank:
        slot = _slots(reference, part)
        num_extra = int((slot < 0).sum())
        instance = np.where(slot >= 0, first_instance + slot, 0)
        instance[slot < 0] = next_extra + np.arange(num_extra)
        next_extra += num_extra
        out.append(part.with_columns(instance=pl.Series(instance, dtype=pl.Int64)))
    return pl.concat(out)


def _slots(reference: pl.DataFrame, part: pl.DataFrame) -> npt.NDArray[np.int64]:
    """Row of the reference for each of ``part``'s collectives, -1 for none."""
    order = np.arange(len(part), dtype=np.int64)
    if len(reference) * len(part) > MAX_CELLS:
        return order
    score = _scores(reference, part)
    if len(reference) == len(part) and (np.diagonal(score) > 0).all():
        return order
    return align(score)


def _scores(reference: pl.DataFrame, part: pl.DataFrame) -> npt.NDArray[np.float64]:
    """[len(reference), len(part)]: how well two collectives of two ranks fit together."""
    same = _equal(reference["kind"], part["kind"]) & _equal(reference["dtype"], part["dtype"])
    score = np.where(same, 1.0, -4.0)
    uniform = np.isin(reference["kind"].to_numpy(), ["all_reduce", "reduce_scatter", "all_gather", "p2p"])[:, None]
    sized = (reference["send_bytes"].is_not_null().to_numpy())[:, None] & part["send_bytes"].is_not_null().to_numpy()[
        None
    ]
    equal_size = _equal(reference["send_bytes"], part["send_bytes"])
    score = np.where(same & uniform & sized, np.where(equal_size, 2.0, -4.0), score)
    sent, there = _exchanged(reference, part)
    received, here = _exchanged(part, reference)
    checked = same & there & here.T
    return np.where(checked, np.where(sent & received.T, 3.0, -4.0), score)


def _equal(a: pl.Series, b: pl.Series) -> npt.NDArray[np.bool_]:
    values = {value: code for code, value in enumerate(set(a.to_list()) | set(b.to_list()))}
    code_a = np.array([values[value] for value in a], dtype=np.int64)
    code_b = np.array([values[value] for value in b], dtype=np.int64)
    return np.equal.outer(code_a, code_b)


def _exchanged(a: pl.DataFrame, b: pl.DataFrame) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """([len(a), len(b)] rows a sends to b equal rows b receives from a, [..] both are recorded)."""
    members = a["members"][0].to_list()
    rank_a, rank_b = a["rank"][0], b["rank"][0]
    if rank_a not in members or rank_b not in members:
        nothing = np.zeros((len(a), len(b)), dtype=bool)
        return nothing, nothing
    sent = a["in_splits"].list.get(members.index(rank_b), null_on_oob=True).fill_null(-1).to_numpy()
    got = b["out_splits"].list.get(members.index(rank_a), null_on_oob=True).fill_null(-1).to_numpy()
    return sent[:, None] == got[None, :], (sent >= 0)[:, None] & (got >= 0)[None, :]


def _agreement(part: pl.DataFrame) -> float:
    """Share of collectives seen by several ranks whose kind, type and exchanged rows agree on all of them."""
    shared = part.filter(pl.len().over("instance") > 1)
    if shared.is_empty():
        return 1.0
    plain = shared.group_by("instance").agg(ok=(pl.col("kind").n_unique() == 1) & (pl.col("dtype").n_unique() == 1))
    sent = shared.filter(pl.col("in_splits").list.len() == pl.col("members").list.len()).select(
        "instance", pl.col("rank").alias("source"), target="members", rows_sent="in_splits"
    )
    got = shared.filter(pl.col("out_splits").list.len() == pl.col("members").list.len()).select(
        "instance", pl.col("rank").alias("target"), source="members", rows_got="out_splits"
    )
    pairs = sent.explode(["target", "rows_sent"]).join(
        got.explode(["source", "rows_got"]), on=["instance", "source", "target"], how="inner"
    )
    wrong = pairs.filter(pl.col("rows_sent") != pl.col("rows_got"))["instance"].unique()
    agrees = plain["ok"] & ~plain["instance"].is_in(wrong.implode())
    return int(agrees.sum()) / len(agrees)
