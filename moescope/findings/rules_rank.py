"""Rules about losses inside a rank: small matrix products, recomputation, the allocator."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from moescope.attribution.gemm.loss import LOSS_PARTS
from moescope.attribution.gemm.ranks import Gemms
from moescope.findings.inputs import Inputs
from moescope.findings.model import Finding
from moescope.findings.scale import NOTICEABLE, STANDS_OUT, ms, severity

TRUSTED = ("baseline", "large products in the trace")
"""References that products of this machine reached; the data sheet's peak and a few products' best rate are guesses."""


def small_gemm(inputs: Inputs) -> Iterator[Finding]:
    """Experts' products that are too small for the device's rate."""
    found = inputs.gemms
    if found is None:
        return
    experts = found.by_step.filter("is_expert")
    count = max(inputs.attribution.parts.select("rank", "step").n_unique(), 1)
    cost = mean = float(experts["loss_ns"].sum()) / count
    if inputs.pipeline_wait_ns() and inputs.gemm_path_loss_ns is not None:
        cost = inputs.gemm_path_loss_ns  # stages wait for each other's losses, so a rank's own are not the step's
    share = inputs.share(cost)
    if experts.is_empty() or share < NOTICEABLE:
        return
    time = float(experts["time_ns"].sum())
    parts = {part: round(experts[f"{part}_ns"].sum() / count) for part in LOSS_PARTS}
    source = _source(found)
    largest = max(parts, key=lambda part: parts[part])
    rows = f" with {found.rows_median:.0f} tokens per expert" if found.rows_median is not None else ""
    yield Finding(
        code="small-gemm",
        severity="warning",
        rank=None,
        layer=_dearest_layer(found),
        cost_ns_per_step=round(cost),
        share_of_step=share,
        claim=f"The experts' matrix products{rows} take {ms(cost)} per step longer than at the reference rate "
        f"({source}), most of it {_WHAT[largest]}.",
        advice=_ADVICE[largest],
        confidence="medium" if source in TRUSTED else "low",
        basis=inputs.finding_basis,
        evidence={
            "page": "gemm",
            "reference": source,
            "references_tflops": _rates(found),
            "tokens_per_expert_median": found.rows_median,
            "loss_by_part_ns": parts,
            "share_of_expert_time": float(experts["loss_ns"].sum()) / time if time else 0.0,
            "rate_tflops": float(experts["flops"].sum()) / time / 1e3 if time else 0.0,
            "one_grouped_call_saves_ns": round(found.grouped_saving_ns / count),
            "one_grouped_call_takes_ns": round(max(found.looped_ns - found.grouped_saving_ns, 0) / count),
            "share_of_products_with_shapes": found.covered_share,
            "is_upper_bound": True,
            "mean_over_ranks_ns": round(mean),
            "formula": "sum of time - FLOPs / reference over the experts' products, mean over ranks and steps; in a "
            "pipeline over those on the critical path",
        },
    )


_WHAT = {
    "memory": "reading weights for too few tokens (memory roofline)",
    "tile": "padding of tiles",
    "wave": "multiprocessors idle in the last wave of tiles",
    "launch": "gaps between kernels",
    "residual": "in no limit that shapes explain (kernel choice, clocks, other work on the device)",
}
_ADVICE = {
    "memory": "Bring more tokens to each expert: larger microbatches, or fewer experts per rank in larger groups.",
    "tile": "Bring more tokens to each expert, or use a kernel with smaller tiles for few rows.",
    "wave": "Compute all experts of a rank in one grouped call, and more tokens at once, so that waves are full.",
    "launch": "Compute all experts of a rank in one grouped call instead of one call per expert.",
    "residual": "Compare with moescope baseline on the same machine: it shows what this shape can reach.",
}


def _source(found: Gemms) -> str:
    return ", ".join(sorted({ref.source for references in found.references.values() for ref in references}))


def _rates(found: Gemms) -> dict[str, float]:
    return {
        f"{device} {ref.dtype}".strip(): ref.flops_per_ns / 1e3
        for device, references in found.references.items()
        for ref in references
    }


def _dearest_layer(found: Gemms) -> int | None:
    """The layer that loses most, where it loses far more than the median one."""
    losses = found.by_layer.sort("loss_ns", "layer", descending=[True, False])
    if losses.is_empty():
        return None
    median = losses["loss_ns"].median()
    stands_out = isinstance(median, int | float) and float(losses["loss_ns"][0]) >= STANDS_OUT * median
    return int(losses["layer"][0]) if stands_out or len(losses) == 1 else None


def recompute_cost(inputs: Inputs) -> Iterator[Finding]:
    """Forward work that the backward pass repeats."""
    cost = inputs.mean_part_ns("compute.recompute")
    share = inputs.share(cost)
    if share < NOTICEABLE:
        return
    flops = inputs.gemms.flops if inputs.gemms is not None else pl.DataFrame()
    again = int(flops["recompute_flops"].sum()) if len(flops) else 0
    model = int(flops["flops"].sum()) if len(flops) else 0
    extra = f", {again / model:.0%} more FLOPs than the model needs" if model else ""
    yield Finding(
        code="recompute-cost",
        severity="warning",
        rank=None,
        layer=None,
        cost_ns_per_step=round(cost),
        share_of_step=share,
        claim=f"Forward work repeated in the backward pass takes {ms(cost)} per step{extra}.",
        advice="Recompute only what is large and cheap (expert activations, norms), or spend free memory on keeping "
        "more. The cost is an upper bound.",
        confidence="medium",
        basis=inputs.finding_basis,
        evidence={
            "page": "verdict",
            "is_upper_bound": True,
            "recompute_flops": again,
            "model_flops": model,
            "formula": "mean over ranks of exposed recomputed compute",
        },
    )


def allocator_stall(inputs: Inputs) -> Iterator[Finding]:
    """Driver allocations inside the step that nothing hides."""
    parts = inputs.attribution.parts.filter(pl.col("part") == "memory.allocator")
    by_rank = parts.group_by("rank").agg(pl.col("ns").mean()).sort(["ns", "rank"], descending=[True, False])
    if by_rank.is_empty():
        return
    worst, cost = int(by_rank["rank"][0]), float(by_rank["ns"][0])
    mean = inputs.mean_part_ns("memory.allocator")
    ranks = max(len(inputs.ranks), 1)
    stands_out = cost >= min(STANDS_OUT * mean, 0.6 * mean * ranks) and ranks > 1
    if stands_out and inputs.pipeline_wait_ns():  # less where another stage's waiting takes it up
        by_waits = inputs.cause_ns("memory").filter(pl.col("culprit") == worst)
        cost = min(cost, float(by_waits["cost_ns"].sum()))
    share = inputs.share(cost)
    if share < NOTICEABLE:
        return
    whose = f"rank {worst}'s" if stands_out else "every rank's"
    yield Finding(
        code="allocator-stall",
        severity=severity(share),
        rank=worst if stands_out else None,
        layer=None,
        cost_ns_per_step=round(cost if stands_out else mean),
        share_of_step=share if stands_out else inputs.share(mean),
        claim=f"Driver allocations and frees inside the step stall {whose} device for "
        f"{ms(cost if stands_out else mean)} per step.",
        advice="Leave headroom or use expandable segments (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True), and "
        "round token counts up so that fewer sizes are asked for.",
        confidence="high" if inputs.attribution.num_steps >= 2 else "medium",
        basis=inputs.finding_basis,
        evidence={
            "page": "memory",
            "mean_over_ranks_ns": round(mean),
            "stall_by_rank_ns": {str(rank): round(ns) for rank, ns in by_rank.head(8).rows()},
            **_calls(inputs, worst),
            "formula": "exposed time of driver allocations and frees, mean over steps of the rank that stalls longest",
        },
    )


def _calls(inputs: Inputs, rank: int) -> dict[str, object]:
    """How often the rank that stalls longest calls the driver, and how many of the calls are retries."""
    found = inputs.allocator.get(rank)
    if found is None:
        return {}
    steps = max(found.num_steps, 1)
    return {
        "calls_per_step": {call: count / steps for call, (count, _) in found.calls.items()},
        "retries_per_step": found.num_retries / steps,
    }


RANK_RULES = (small_gemm, recompute_cost, allocator_stall)
"""After the rules about waits: what a rank loses by itself."""
