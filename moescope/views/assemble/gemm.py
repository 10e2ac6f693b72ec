"""Matrix operations into the view model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from moescope.align import Alignment
from moescope.align.baseline import Baseline
from moescope.attribution import Attribution, RankProfile
from moescope.attribution.gemm.loss import LOSS_PARTS
from moescope.attribution.gemm.ranks import COSTS, Gemms, gemms, loss_within
from moescope.attribution.gemm.rows import local_rows
from moescope.telemetry import Telemetry
from moescope.views.model.gemm import (
    Gemm,
    GemmBucket,
    GemmCost,
    GemmCurve,
    GemmExpert,
    GemmLayer,
    GemmRank,
    GemmReference,
)


def find_gemms(
    profiles: Sequence[RankProfile], telemetry: Telemetry | None, baseline: Baseline | None = None
) -> Gemms | None:
    """Matrix operations of all ranks, held against ``baseline`` if there is one; None where no shape is recorded."""
    parallel: Any = telemetry.run.get("parallel") if telemetry is not None else None
    parallel = parallel if isinstance(parallel, Mapping) else {}
    load = telemetry.expert_load if telemetry is not None else pl.DataFrame()
    steps = {step for profile in profiles for step in profile.gemms["step"].unique()}
    rows = local_rows(load, parallel.get("ep_groups") or (), parallel.get("expert_placement"), steps)
    if baseline is None:
        return gemms(profiles, rows)
    return gemms(profiles, rows, baseline.flops_per_ns, baseline.memory_bytes_per_ns)


def gemm_view(found: Gemms | None, attribution: Attribution, alignment: Alignment) -> Gemm | None:
    """The view of ``find_gemms``."""
    if found is None:
        return None
    windows = attribution.parts.select("rank", "step", "window_ns").unique()
    count = max(len(windows), 1)
    by_rank = tuple(_ranks(found, windows))
    used = [row.utilisation for row in by_rank if row.utilisation is not None]
    experts = found.by_step.filter("is_expert")
    return Gemm(
        references=tuple(_references(found)),
        experts=_total(experts, count),
        other=_total(found.by_step.filter(~pl.col("is_expert")), count),
        layers=tuple(GemmLayer(int(row["layer"]), _cost(row, count)) for row in found.by_layer.iter_rows(named=True)),
        buckets=tuple(
            GemmBucket(int(row["low"]), row["high"], _cost(row, count)) for row in found.by_rows.iter_rows(named=True)
        ),
        by_rank=by_rank,
        curves=tuple(
            GemmCurve(c.kind, c.dtype, c.groups, c.n, c.k, c.fixed_ns, c.ns_per_row, c.residual_ns, c.points)
            for c in found.curves
        ),
        rows_per_expert_median=found.rows_median,
        utilisation=sum(used) / len(used) if used else None,
        recompute_ns_per_step=round(found.recompute_ns / count),
        covered_share=found.covered_share,
        grouped_saving_ns_per_step=round(found.grouped_saving_ns / count),
        by_expert=tuple(_experts(found, windows)),
        looped_ns_per_step=round(found.looped_ns / count),
        critical_loss_ns_per_step=critical_loss_ns(found, attribution, alignment),
    )


def critical_loss_ns(found: Gemms, attribution: Attribution, alignment: Alignment) -> int | None:
    """What the experts' products on the path lose per step; None without a path."""
    path = attribution.path
    if path is None:
        return None
    common = [
        mine.with_columns(start_ns=alignment.clock_of(int(rank)).to_common(mine["start_ns"]))
        for (rank,), mine in found.expert_losses.group_by("rank", maintain_order=True)
    ]
    return round(loss_within(pl.concat(common), path.stretches) / attribution.num_steps) if common else 0


def _references(found: Gemms) -> Iterator[GemmReference]:
    for device, references in found.references.items():
        for ref in references:
            peak = ref.peak_flops_per_ns
            yield GemmReference(
                device=device,
                dtype=ref.dtype,
                rate_tflops=ref.flops_per_ns / 1e3,
                source=ref.source,
                num_calls=ref.num_calls,
                peak_tflops=peak / 1e3 if peak is not None else None,
                memory_gb_per_s=ref.memory_bytes_per_ns,
            )


def _total(rows: pl.DataFrame, count: int) -> GemmCost:
    return _cost(rows.select(pl.col(name).sum() for name in COSTS).row(0, named=True), count)


def _cost(row: Mapping[str, Any], count: int) -> GemmCost:
    """Means over ``count`` rank steps; the largest part takes the rounding, so the parts sum to the loss."""
    loss = round(row["loss_ns"] / count)
    parts = {part: round(row[f"{part}_ns"] / count) for part in LOSS_PARTS}
    parts["residual"] += loss - sum(parts.values())
    return GemmCost(
        calls_per_step=row["num_calls"] / count,
        time_ns_per_step=round(row["time_ns"] / count),
        flops_per_step=row["flops"] / count,
        rate_tflops=row["flops"] / row["time_ns"] / 1e3 if row["time_ns"] else 0.0,
        loss_ns_per_step=loss,
        parts_ns_per_step=parts,
    )


def _experts(found: Gemms, windows: pl.DataFrame) -> Iterator[GemmExpert]:
    """Per step of the rank."""
    steps = dict(windows.group_by("rank").len().rows())
    for row in found.by_expert.iter_rows(named=True):
        count = max(steps.get(row["rank"], 1), 1)
        yield GemmExpert(
            rank=row["rank"],
            expert=row["expert"],
            calls_per_step=row["num_calls"] / count,
            rows=row["rows"],
            time_ns_per_step=round(row["time_ns"] / count),
            loss_ns_per_step=round(row["loss_ns"] / count),
            is_shared_out=row["is_shared_out"],
        )


def _ranks(found: Gemms, windows: pl.DataFrame) -> Iterator[GemmRank]:
    expert = pl.col("is_expert")
    spent = found.by_step.group_by("rank", "step").agg(
        time_ns=pl.col("time_ns").sum(),
        loss_ns=pl.col("loss_ns").sum(),
        expert_time_ns=pl.col("time_ns").filter(expert).sum(),
        expert_loss_ns=pl.col("loss_ns").filter(expert).sum(),
    )
    table = found.flops.join(spent, on=["rank", "step"], how="left").join(windows, on=["rank", "step"], how="left")
    capacity = pl.col("peak_flops_per_ns") * pl.col("window_ns")
    table = table.with_columns(utilisation=pl.col("flops") / capacity).sort("rank", "step")
    names = (
        "rank", "step", "flops", "recompute_flops", "time_ns", "loss_ns", "expert_time_ns", "expert_loss_ns",
    )  # fmt: skip
    for row in table.iter_rows(named=True):
        yield GemmRank(**{name: row[name] or 0 for name in names}, utilisation=row["utilisation"])
