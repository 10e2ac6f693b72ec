"""Rules about the router: experts nobody chooses, tokens that capacity drops."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from moescope.findings.inputs import Inputs
from moescope.findings.model import Finding

COLLAPSED_ENTROPY = 0.5
"""Normalised entropy of the expert counts below which a layer's router counts as collapsed; even routing has 1."""
DEAD_SHARE = 0.5
"""Share of a layer's experts that no token reaches from which its router counts as collapsed."""
DROPPED_SHARE = 0.01
"""Share of assignments dropped from which it is reported."""


def router_collapse(inputs: Inputs) -> Iterator[Finding]:
    """A router that sends almost everything to few experts."""
    layers = inputs.load_layers
    if layers.is_empty():
        return
    is_collapsed = (pl.col("entropy") < COLLAPSED_ENTROPY) | (pl.col("dead_share") >= DEAD_SHARE)
    collapsed = layers.filter(is_collapsed.fill_null(False)).sort(["entropy", "layer"])
    if collapsed.is_empty():
        return
    layer, entropy, dead_share = collapsed.select("layer", "entropy", "dead_share").row(0)
    yield Finding(
        code="router-collapse",
        severity="warning",
        rank=None,
        layer=int(layer),
        cost_ns_per_step=0,
        share_of_step=0.0,
        claim=f"The router of {len(collapsed)} of {len(layers)} layers sends almost everything to few experts: in "
        f"layer {layer} the entropy of the counts is {entropy:.2f} of 1, and {dead_share:.0%} of the experts are idle.",
        advice="Raise the balancing coefficient or the bias update, lower the router's learning rate, and compute "
        "router scores in fp32; a collapsed router costs quality as well as time.",
        confidence="high" if inputs.load_source == "telemetry" else "medium",
        basis=inputs.finding_basis,
        evidence={
            "page": "load",
            "layers": collapsed["layer"].to_list()[:32],
            "entropy": entropy,
            "dead_share": dead_share,
            "formula": "entropy of expert counts over ln(experts), mean over microbatches",
        },
    )


def dropped_tokens(inputs: Inputs) -> Iterator[Finding]:
    """Assignments that capacity dropped."""
    layers = inputs.load_layers
    if layers.is_empty():
        return
    dropped = layers.filter((pl.col("dropped_share") >= DROPPED_SHARE).fill_null(False))
    dropped = dropped.sort(["dropped_share", "layer"], descending=[True, False])
    if dropped.is_empty():
        return
    layer, share = dropped.select("layer", "dropped_share").row(0)
    yield Finding(
        code="dropped-tokens",
        severity="warning",
        rank=None,
        layer=int(layer),
        cost_ns_per_step=0,
        share_of_step=0.0,
        claim=f"Experts over capacity drop tokens in {len(dropped)} of {len(layers)} layers, {share:.1%} of the "
        f"assignments in layer {layer}.",
        advice="Balance the load first; then raise the capacity factor, or train dropless.",
        confidence="high",
        basis=inputs.finding_basis,
        evidence={
            "page": "load",
            "dropped_share_by_layer": {str(at): part for at, part in dropped.select("layer", "dropped_share").rows()},
            "formula": "dropped assignments over routed assignments",
        },
    )
