"""Findings that name the ranks others wait for, by what made them late."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median_low

import polars as pl

from moescope.findings.inputs import Inputs
from moescope.findings.model import Finding
from moescope.findings.scale import NOTICEABLE, STANDS_OUT, ms, severity


def culprits(inputs: Inputs, *, cause: str, code: str, claim: str, advice: str) -> Iterator[Finding]:
    """One finding for each rank whose cost of ``cause`` stands out; ``claim`` takes ``rank`` and ``cost``."""
    causes = inputs.cause_ns(cause)
    by_rank = dict(causes.select("culprit", "cost_ns").rows())
    median = median_low([by_rank.get(rank, 0.0) for rank in inputs.ranks])
    for rank, cost in by_rank.items():
        share = inputs.share(cost)
        if share < NOTICEABLE or cost < STANDS_OUT * median:
            continue
        yield Finding(
            code=code,
            severity=severity(share),
            rank=int(rank),
            layer=top_layer(inputs, cause, int(rank)),
            cost_ns_per_step=round(cost),
            share_of_step=share,
            claim=claim.format(rank=rank, cost=ms(cost)),
            advice=advice,
            confidence=inputs.confidence(cost),
            basis=inputs.finding_basis,
            evidence={
                "page": "communication",
                "median_rank_cost_ns": round(median),
                "formula": f"removable waits charged to {cause} of the late rank, averaged over the other ranks",
            },
        )


def top_layer(inputs: Inputs, cause: str, rank: int | None) -> int | None:
    """The layer in which ``cause`` costs most, on ``rank`` if given; None where no layer is known."""
    mine = inputs.attribution.causes.filter(pl.col("cause") == cause)
    mine = mine.filter(pl.col("culprit") == rank) if rank is not None else mine
    mine = mine.drop_nulls("layer").group_by("layer", maintain_order=True).agg(pl.col("cost_ns").sum())
    mine = mine.sort(["cost_ns", "layer"], descending=[True, False])
    return int(mine["layer"][0]) if len(mine) else None
