"""Findings that name the ranks others wait for, by what made them late."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median_low

import polars as pl

from moescope.findings.inputs import Inputs
from moescope.findings.model import Finding
from moescope.findings.scale import NOTICEABLE, STANDS_OUT, ms, severity


@dataclass(frozen=True, slots=True)
class Advice:
    """What to try, by whether the rank computes on a device or on the host's processor."""

    on_device: str
    on_cpu: str


ONE_STEP = 0.8
"""Share of a rank's cost in a single one of several steps from which it is called a single event."""


def culprits(inputs: Inputs, *, cause: str, code: str, claim: str, advice: Advice) -> Iterator[Finding]:
    """One finding for each rank whose cost of ``cause`` stands out; ``claim`` takes ``rank``, ``who`` and ``cost``."""
    causes = inputs.cause_ns(cause)
    by_rank = dict(causes.select("culprit", "cost_ns").rows())
    median = median_low([by_rank.get(rank, 0.0) for rank in inputs.ranks])
    for rank, cost in by_rank.items():
        share = inputs.share(cost)
        if share < NOTICEABLE or cost < STANDS_OUT * median:
            continue
        step, share_of_step = inputs.heaviest_step(cause, int(rank))
        is_once = inputs.attribution.num_steps > 1 and share_of_step > ONE_STEP
        when = f", {share_of_step:.0%} of it in step {step} alone" if is_once else ""
        confidence = inputs.confidence(cost)
        on_cpu = inputs.is_on_cpu(int(rank))
        who = f"Rank {rank}'s {'threads are' if on_cpu else 'device is'}"
        yield Finding(
            code=code,
            severity=severity(share),
            rank=int(rank),
            layer=top_layer(inputs, cause, int(rank)),
            cost_ns_per_step=round(cost),
            share_of_step=share,
            claim=f"{claim.format(rank=rank, who=who, cost=ms(cost))}{when}.",
            advice=advice.on_cpu if on_cpu else advice.on_device,
            confidence="medium" if is_once and confidence == "high" else confidence,
            basis=inputs.finding_basis,
            evidence={
                "page": "communication",
                "median_rank_cost_ns": round(median),
                "heaviest_step": step,
                "share_of_cost_in_heaviest_step": share_of_step,
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
