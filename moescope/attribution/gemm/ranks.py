"""All ranks' matrix operations together: references, losses, and what they sum to.

Ranks with the same kind of device share their references.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import polars as pl

from moescope.attribution.gemm.by_expert import by_expert
from moescope.attribution.gemm.curve import Curve, curves
from moescope.attribution.gemm.loss import LOSS_PARTS, with_loss
from moescope.attribution.gemm.reference import Reference, peak_of, references

BUCKET_EDGES = (16, 32, 64, 128, 256, 512, 1024, 2048)
"""Upper ends of the buckets of rows per expert; the last bucket has none."""

COSTS = ("num_calls", "time_ns", "flops", "loss_ns", *(f"{part}_ns" for part in LOSS_PARTS))
"""Columns of every summary, sums over the calls."""


class HasGemms(Protocol):
    """What is needed of a rank's profile."""

    @property
    def rank(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def gemms(self) -> pl.DataFrame: ...
    @property
    def gemm_compute_ns(self) -> int: ...
    @property
    def num_multiprocessors(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Gemms:
    """``by_step``: ``rank, step, is_expert`` and COSTS. ``by_layer``: ``layer`` (experts' products only) and COSTS.
    ``by_rows``: ``low, high`` (rows per expert, high null for the last) and COSTS. Sums over ranks and steps.

    ``flops``: ``rank, step, flops, recompute_flops, peak_flops_per_ns`` of all operations, recomputed ones apart.
    """

    references: Mapping[str, tuple[Reference, ...]]
    """By device."""
    by_step: pl.DataFrame
    by_layer: pl.DataFrame
    by_rows: pl.DataFrame
    by_expert: pl.DataFrame
    """``by_expert.SCHEMA``; empty where experts cannot be told apart."""
    flops: pl.DataFrame
    curves: tuple[Curve, ...]
    rows_median: float | None
    """Median rows per expert over the experts' products."""
    recompute_ns: int
    """Time of recomputed matrix operations, summed over ranks and steps."""
    covered_share: float
    """Share of the time of matrix products whose shapes are known."""
    looped_ns: int
    """Time of single experts' calls, of which several make up a layer's product, with the gaps between them, summed."""
    grouped_saving_ns: float
    """What one grouped call per layer, microbatch and weight would save over single experts' calls, summed: the gaps
    between them and the fixed time of all but one."""
    expert_losses: pl.DataFrame
    """``rank, start_ns`` (local clock), ``loss_ns`` of every expert's product."""


def loss_within(losses: pl.DataFrame, stretches: pl.DataFrame) -> int:
    """Loss of the products that begin within ``stretches`` of their rank, ns; times of both on one clock.

    ``losses``: ``rank, start_ns, loss_ns``; ``stretches``: ``rank, start_ns, end_ns``, which do not overlap.
    """
    if losses.is_empty() or stretches.is_empty():
        return 0
    marked = stretches.select("rank", "start_ns", "end_ns").sort("start_ns")
    at = losses.sort("start_ns").join_asof(marked, on="start_ns", by="rank", check_sortedness=False)
    return int(at.filter(pl.col("start_ns") < pl.col("end_ns"))["loss_ns"].sum())


def gemms(
    profiles: Sequence[HasGemms],
    group_rows: pl.DataFrame,
    measured: Mapping[str, float] | None = None,
    memory_bytes_per_ns: float | None = None,
) -> Gemms | None:
    """Everything about matrix operations; None where no trace records a shape.

    ``group_rows``: ``rows.local_rows``. ``measured``, ``memory_bytes_per_ns``: see ``reference.references``.
    """
    kinds: dict[tuple[str, int | None], list[pl.DataFrame]] = {}
    for profile in profiles:
        mine = profile.gemms.with_columns(rank=pl.lit(profile.rank, pl.Int64))
        kinds.setdefault((profile.device, profile.num_multiprocessors), []).append(mine)
    refs: dict[str, tuple[Reference, ...]] = {}
    lost, every = [], []
    for (device, num_multiprocessors), frames in kinds.items():
        calls = pl.concat(frames)
        found = references(calls, device, measured, memory_bytes_per_ns)
        refs[device] = tuple(found[dtype] for dtype in sorted(found))
        lost.append(with_loss(_with_rows(calls, group_rows), found, num_multiprocessors))
        every.append(_flops(calls, device))
    calls = pl.concat(lost)
    if sum(len(profile.gemms) for profile in profiles) == 0:
        return None
    fitted = curves(calls)
    experts = calls.filter("is_expert")
    looped, saving = _grouped_saving(experts, fitted)
    median = experts["rows"].median()
    timed = sum(int(profile.gemms["kernel_ns"].sum()) for profile in profiles)
    labelled = sum(profile.gemm_compute_ns for profile in profiles)
    return Gemms(
        references=refs,
        by_step=_summary(calls, ["rank", "step", "is_expert"]),
        by_layer=_summary(experts.drop_nulls("layer"), ["layer"]),
        by_rows=_summary(_bucketed(experts), ["low", "high"]),
        by_expert=by_expert(experts),
        flops=pl.concat(every).sort("rank", "step"),
        curves=fitted,
        rows_median=float(median) if isinstance(median, int | float) else None,
        recompute_ns=sum(int(p.gemms.filter("is_recompute")["kernel_ns"].sum()) for p in profiles),
        covered_share=min(timed / labelled, 1.0) if labelled else 1.0,
        looped_ns=looped,
        grouped_saving_ns=saving,
        expert_losses=experts.select("rank", "start_ns", "loss_ns"),
    )


def _with_rows(calls: pl.DataFrame, group_rows: pl.DataFrame) -> pl.DataFrame:
    """``group_rows`` of the grouped products whose total agrees with the counts."""
    joined = calls.join(group_rows, on=["rank", "step", "microbatch", "layer"], how="left", maintain_order="left")
    total = pl.col("group_rows").list.sum()
    agrees = pl.any_horizontal((pl.col("divided") == side) & (total == pl.col(side)) for side in ("m", "n", "k"))
    return joined.with_columns(group_rows=pl.when(agrees).then("group_rows"))


def _summary(calls: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    sums = [pl.len().cast(pl.Int64).alias("num_calls"), *(pl.col(name).sum() for name in COSTS[1:])]
    return calls.group_by(key).agg(sums).sort(key)


def _bucketed(calls: pl.DataFrame) -> pl.DataFrame:
    slot = pl.sum_horizontal(pl.lit(0), *((pl.col("rows") >= edge).cast(pl.Int64) for edge in BUCKET_EDGES))
    lows = dict(enumerate((0, *BUCKET_EDGES)))
    highs = dict(enumerate((*BUCKET_EDGES, None)))
    return calls.with_columns(slot=slot).with_columns(
        low=pl.col("slot").replace_strict(lows, return_dtype=pl.Int64),
        high=pl.col("slot").replace_strict(highs, return_dtype=pl.Int64),
    )


def _flops(calls: pl.DataFrame, device: str) -> pl.DataFrame:
    """FLOPs per rank and step, and the peak of the type that most of them have."""
    peak = peak_of(device)
    by_type = calls.group_by("dtype").agg(pl.col("flops").sum()).sort(["flops", "dtype"], descending=True)
    top = peak.flops_per_ns.get(by_type["dtype"][0]) if peak is not None and len(by_type) else None
    again = pl.col("flops").filter("is_recompute").sum()
    table = calls.group_by("rank", "step").agg(flops=pl.col("flops").sum() - again, recompute_flops=again)
    return table.with_columns(peak_flops_per_ns=pl.lit(top, pl.Float64))


def _grouped_saving(experts: pl.DataFrame, fitted: Sequence[Curve]) -> tuple[int, float]:
    """(time of single experts' calls, what one grouped call in place of each loop would save), ns."""
    fixed = {(c.n, c.k, c.dtype): max(c.fixed_ns, 0.0) for c in fitted if c.kind == "gemm" and c.fixed_ns is not None}
    schema = {"n": pl.Int64, "k": pl.Int64, "dtype": pl.String, "fixed_ns": pl.Float64}
    table = pl.DataFrame([(*key, value) for key, value in fixed.items()], schema=schema, orient="row")
    single = experts.filter((pl.col("kind") == "gemm") & pl.col("layer").is_not_null())
    loops = single.group_by("rank", "step", "layer", "microbatch", "phase", "backward", "n", "k", "dtype").agg(
        count=pl.len(), gap_ns=pl.col("gap_ns").sum(), time_ns=pl.col("time_ns").sum()
    )
    loops = loops.filter(pl.col("count") > 1).join(table, on=["n", "k", "dtype"], how="left")
    saved = pl.col("gap_ns") + (pl.col("count") - 1) * pl.col("fixed_ns").fill_null(0.0)
    return int(loops["time_ns"].sum()), float(loops.select(saved.sum()).item())
