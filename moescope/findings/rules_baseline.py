"""The rule that needs a baseline: transfers far below what was measured on the same machines."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from moescope.align.robust import FloatArray
from moescope.align.transfer import TransferModel
from moescope.findings.inputs import Inputs
from moescope.findings.model import Finding
from moescope.findings.network_reasons import likely_reasons
from moescope.findings.scale import NOTICEABLE, ms, severity

FAR_BELOW = 2.0
"""Exchanges that take this many times what the baseline's do are reported."""


def below_baseline(inputs: Inputs) -> Iterator[Finding]:
    """All-to-alls that take far longer than the baseline's of the same size between the same kind of peers."""
    models = inputs.baseline.transfers if inputs.baseline is not None else {}
    rows = inputs.alignment.collectives
    if not models or rows.is_empty():
        return
    usable = rows.filter(
        (pl.col("kind") == "all_to_all") & pl.col("complete") & pl.col("bottleneck_bytes").is_not_null()
    ).filter(pl.col("tier").is_in(list(models)) & pl.col("step").is_not_null())
    shortest = usable.with_columns(span_ns=pl.col("transfer_ns").min().over("instance"))
    for (tier,), part in shortest.group_by(["tier"], maintain_order=True):
        model = models[str(tier)]
        expected = model.duration_ns(part["bottleneck_bytes"].to_numpy().astype(np.float64))
        spent = part["span_ns"].to_numpy().astype(np.float64)
        ratio = float(spent.sum() / max(expected.sum(), 1.0))
        cost = float((spent - expected).sum()) / max(part.select("rank", "step").n_unique(), 1)
        share = inputs.share(cost)
        if ratio < FAR_BELOW or share < NOTICEABLE:
            continue
        yield Finding(
            code="slow-network",
            severity=severity(share),
            rank=None,
            layer=None,
            cost_ns_per_step=round(cost),
            share_of_step=share,
            claim=f"All-to-alls {tier} take {ratio:.1f} times what the baseline's take for the same bytes: "
            f"{ms(cost)} per step.",
            advice="Look for sockets instead of the fast transport (NCCL_DEBUG=INFO names it), the wrong interface "
            "(NCCL_SOCKET_IFNAME, NCCL_IB_HCA), a degraded link (nvidia-smi nvlink -s, ibstat), settings unlike "
            "the baseline's, and other jobs' traffic.",
            confidence="medium",
            basis=inputs.finding_basis,
            evidence={
                "page": "communication",
                "is_upper_bound": True,
                "times_the_baseline": ratio,
                "num_exchanges": part["instance"].n_unique(),
                "baseline_latency_us": model.alpha_ns / 1e3,
                "baseline_gb_per_s": model.bytes_per_ns,
                "likely_reasons": likely_reasons(
                    1 / ratio, ratios=spent / np.maximum(expected, 1.0), latency_share=_latency_share(model, expected)
                ),
                "formula": "shortest transfer of any rank - (latency + bottleneck bytes / bandwidth) of the baseline, "
                "summed over a rank's exchanges, mean over ranks and steps",
            },
        )


def _latency_share(model: TransferModel, expected_ns: FloatArray) -> float:
    """Share of the expected time that is latency."""
    total = float(expected_ns.sum())
    return model.alpha_ns * len(expected_ns) / total if total > 0 else 0.0
