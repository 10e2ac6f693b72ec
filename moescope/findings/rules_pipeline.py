"""Rules about a pipeline's stages waiting for each other."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from moescope.findings.inputs import Inputs
from moescope.findings.model import Finding
from moescope.findings.scale import NOTICEABLE, ms

UNEVEN_SHARE = 0.5
"""Share of the waits from which the stages' different compute is named as what makes them."""


def pipeline_bubbles(inputs: Inputs) -> Iterator[Finding]:
    """Stages wait for other stages although no rank is behind its own stage."""
    cost = inputs.pipeline_wait_ns()
    share = inputs.share(cost)
    if share < NOTICEABLE:
        return
    compute = _compute_by_stage(inputs)
    uneven = max(compute.values()) - sum(compute.values()) / len(compute) if compute else 0.0
    longest = max(compute, key=lambda stage: compute[stage]) if compute else None
    is_uneven = longest is not None and uneven >= UNEVEN_SHARE * cost
    why = f", mostly because stage {longest} computes longest" if is_uneven else ""
    alone = inputs.has_lone_ranks()
    yield Finding(
        code="pipeline-bubbles",
        severity="warning",
        rank=None,
        layer=None,
        cost_ns_per_step=round(cost),
        share_of_step=share,
        claim=f"Ranks wait {ms(cost)} per step for other stages of the pipeline without any rank being behind its "
        f"stage{why}."
        + (" With one rank in a stage a slow rank cannot be told from a stage with more work." if alone else ""),
        advice="Even out the layers of the stages, the head counted in; more microbatches per step or interleaved "
        "stages shorten what is lost while the pipeline fills and drains. The cost is an upper bound.",
        confidence="low" if alone else "medium",
        basis=inputs.finding_basis,
        evidence={
            "page": "communication",
            "is_upper_bound": True,
            "compute_by_stage_ns": {str(stage): round(ns) for stage, ns in compute.items()},
            "longest_stage_beyond_mean_ns": round(uneven),
            "formula": "removable waits for ranks of another stage that no deviation within a stage explains, "
            "averaged over all ranks",
        },
    )


def _compute_by_stage(inputs: Inputs) -> dict[int, float]:
    """Mean compute of a stage's ranks per step."""
    compute = inputs.attribution.parts.filter(pl.col("part").str.starts_with("compute."))
    by_rank = compute.group_by("rank").agg(pl.col("ns").sum() / pl.col("step").n_unique())
    stage = pl.col("rank").replace_strict(inputs.stages(), default=None, return_dtype=pl.Int64)
    by_stage = by_rank.group_by(stage=stage).agg(pl.col("ns").mean()).drop_nulls().sort("stage")
    return {int(stage): float(ns) for stage, ns in by_stage.iter_rows()}
