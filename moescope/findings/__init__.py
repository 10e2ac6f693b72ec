"""The verdict: rules over the numbers, ranked."""

from __future__ import annotations

from moescope.findings.codes import FINDING_CODES, SEVERITIES
from moescope.findings.inputs import Inputs
from moescope.findings.model import Finding
from moescope.findings.rules import RULES
from moescope.findings.scale import NOTICEABLE

SHORT_WAITS = 0.05
"""Removable waits up to this share of the step leave a run balanced, if no cause stands out among them."""

__all__ = ["FINDING_CODES", "Finding", "Inputs", "findings"]


def findings(inputs: Inputs) -> tuple[Finding, ...]:
    """All findings, gravest first; ``balanced`` where no cause makes ranks wait.

    Within a severity, costs that a fix would recover come before upper bounds, each by size.
    """
    found = [finding for rule in RULES for finding in rule(inputs)]
    losses = [f for f in found if f.cost_ns_per_step and not f.evidence.get("is_upper_bound")]
    waits = inputs.share(inputs.mean_part_ns("comm.", "wait_removable") - inputs.pipeline_wait_ns())
    is_whole = len(inputs.ranks) == inputs.world_size and not inputs.alignment.refusals
    comparable = len(inputs.ranks) > 1 and not (inputs.pipeline_wait_ns() and inputs.has_lone_ranks())
    if not losses and waits < SHORT_WAITS and inputs.attribution.num_steps and comparable and is_whole:
        found.append(_balanced(inputs, waits))
    order = {severity: index for index, severity in enumerate(SEVERITIES)}
    return tuple(
        sorted(
            found,
            key=lambda f: (-order[f.severity], bool(f.evidence.get("is_upper_bound")), -f.cost_ns_per_step, f.code),
        )
    )


_NEXT = {
    True: "Nothing makes {ranks} wait for one another; what is left lies inside each rank.",
    False: "Nothing makes {ranks} wait for one another. Whether links and devices reach what they can is not judged "
    "without a baseline: moescope baseline measures one, --baseline holds the run against it.",
}
"""What to do next, by whether a baseline was given; ``ranks``: those that were compared."""


def _balanced(inputs: Inputs, waits: float) -> Finding:
    staged = inputs.pipeline_wait_ns() > 0
    where, within = ("of each pipeline stage ", "within a stage ") if staged else ("", "")
    return Finding(
        code="balanced",
        severity="good",
        rank=None,
        layer=None,
        cost_ns_per_step=0,
        share_of_step=0.0,
        claim=f"Ranks {where}arrive together: removable waits {within}are {waits:.1%} of the step, and no cause "
        f"reaches {NOTICEABLE:.0%}.",
        advice=_NEXT[inputs.baseline is not None].format(ranks="ranks of a stage" if staged else "ranks"),
        confidence=inputs.confidence(NOTICEABLE * inputs.step_ns),
        basis=inputs.finding_basis,
        evidence={"page": "verdict", "removable_wait_share_of_step": waits},
    )
