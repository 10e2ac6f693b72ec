"""Rules about clocks: known too loosely for the waits, or contradicted by what was recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from moescope.align import HostClock
from moescope.findings.inputs import Inputs
from moescope.findings.model import Finding

MAX_DISAGREEMENT = 0.05
"""Share of the step by which aligned waits may differ from those that need no clock."""

EXACT = ("reference", "single host")
"""Methods of clocks that carry no uncertainty of their own."""


def clock_uncertain(inputs: Inputs) -> Iterator[Finding]:
    """Clocks of hosts known too loosely for the waits between them."""
    settled = {found.host for found in inputs.alignment.contradictions}
    clocks = [c for c in inputs.alignment.clocks if c.method not in EXACT and c.host not in settled]
    if not clocks:
        return
    worst = max(clocks, key=lambda clock: (clock.contradictory, _is_untied(clock), clock.uncertainty_ns))
    rows = inputs.alignment.collectives.filter((pl.col("tier") == "across hosts") & (pl.col("arrival_wait_ns") > 0))
    mean = rows["arrival_wait_ns"].mean()
    typical = float(mean) if isinstance(mean, int | float) else 0.0
    loose = worst.uncertainty_ns > 0.1 * typical and worst.uncertainty_ns > 1e-3 * inputs.step_ns
    disagreement = inputs.alignment.clock_free_disagreement_ns / inputs.attribution.num_steps
    disagrees = disagreement > MAX_DISAGREEMENT * inputs.step_ns
    if not (worst.contradictory or _is_untied(worst) or loose or disagrees):
        return
    why = "no collective spans it" if _is_untied(worst) else f"known to ±{worst.uncertainty_ns / 1e3:.0f} µs"
    yield Finding(
        code="clock-uncertain",
        severity="warning",
        rank=None,
        layer=None,
        cost_ns_per_step=0,
        share_of_step=0.0,
        claim=f"The clock of host {worst.host or 'unnamed'} is uncertain ({why}); waits across hosts carry that error.",
        advice="Profile a window with small collectives over all ranks (a barrier or the loss reduction), or record "
        "clock offsets with the hooks.",
        confidence="high",
        basis="inferred",
        evidence={
            "page": "run",
            "method": worst.method,
            "num_anchors": worst.num_anchors,
            "low_ns": worst.low_ns,
            "high_ns": worst.high_ns,
            "mean_wait_across_hosts_ns": round(typical),
            "disagreement_with_clock_free_waits_ns_per_step": round(disagreement),
        },
    )


def _is_untied(clock: HostClock) -> bool:
    """Whether nothing ties the clock to the reference: no common collective, no third host, no measurement."""
    return clock.method.startswith("no anchors")


def clocks_contradict(inputs: Inputs) -> Iterator[Finding]:
    """Ranks taken for one host's that cannot share a clock: every wait between them is off by the difference."""
    for found in inputs.alignment.contradictions:
        option = as_hosts_option(found.alike)
        told = f"they look like {option}" if len(found.alike) > 1 else "no grouping stands out"
        yield Finding(
            code="clock-uncertain",
            severity="critical",
            rank=None,
            layer=None,
            cost_ns_per_step=0,
            share_of_step=0.0,
            claim=f"The ranks of host {found.host or 'unnamed'} do not share a clock: {found.num_instances} of "
            f"{found.num_checked} collectives end on one rank up to {found.worst_ns / 1e3:.0f} µs before another has "
            f"begun; {told}. Waits and causes between these ranks are wrong by about as much.",
            advice=f"Say which ranks share a host: --hosts {option}"
            if len(found.alike) > 1
            else "Say which ranks share a host with --hosts, or check that the files are of one run.",
            confidence="high",
            basis="inferred",
            evidence={
                "page": "run",
                "host": found.host,
                "worst_ns": found.worst_ns,
                "num_contradicted": found.num_instances,
                "num_checked": found.num_checked,
                "hosts_option": option,
            },
        )


def as_hosts_option(groups: Sequence[Sequence[int]]) -> str:
    """Groups of ranks as ``--hosts`` takes them: ``0-3,4-7``, or ``0-1+4-5,2-3+6-7`` where they interleave."""
    return ",".join(_ranges(group) for group in groups)


def _ranges(ranks: Sequence[int]) -> str:
    runs = np.split(np.array(ranks), np.flatnonzero(np.diff(ranks) > 1) + 1)
    return "+".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
