"""How far an analysis is from the truth of a simulated run, and the table of many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from attribution_cases import Case

from moescope.views.model import Analysis

Truth = dict[str, Any]

ALIASES = {"expert_load": ("expert_load", "volume_imbalance")}
"""A skew shows as uneven expert time and as uneven transfers; either names it, and both together are its cost."""
UNWAITED = {"small-gemm": "small_gemm", "slow-network": "slow_network"}
"""Findings of what costs every rank alike, so that none waits for another, and the cause that each stands for."""
NOTICEABLE = 0.005
"""Share of the step below which a charge counts as nothing found."""


@dataclass(frozen=True, slots=True)
class Score:
    """How far one analysis is from the truth."""

    case: Case
    cause_right: bool
    """The costliest cause is the fault's; in a healthy run: `balanced` and no other charge."""
    rank_right: bool | None
    """The cause names a rank at fault; None where it names none or the fault has none."""
    cost_error: float
    """Share of the step by which the cause's cost is off."""
    wait_error: float
    """Removable wait: sum of absolute errors over the time in all-to-alls, or in messages if they are further off."""
    clock_error_us: float
    bracket_holds: bool
    residual_ns: int
    said: str
    """Causes and findings, for reading."""
    seconds: dict[str, float] = field(default_factory=dict)


def score(case: Case, analysis: Analysis, truth: Truth, seconds: dict[str, float]) -> Score:
    """Compare an analysis with the truth."""
    costs: dict[tuple[str, int | None], int] = defaultdict(int)
    for cause in analysis.causes:
        costs[cause.cause, cause.rank] += cause.cost_ns_per_step
    for finding in analysis.findings:
        unwaited = UNWAITED.get(finding.code)
        if unwaited and not any(name == unwaited for name, _ in costs):
            costs[unwaited, finding.rank] = finding.cost_ns_per_step
    costs = {key: ns for key, ns in costs.items() if key[0] != "pipeline"}
    ranked = sorted(costs.items(), key=lambda item: -item[1])
    fault = next((f for f in truth["faults"] if f["cause"]), None)
    findings = [f.code for f in analysis.findings]
    said = (
        ", ".join(f"{name} {rank} {ns / 1e6:.2f} ms" for (name, rank), ns in ranked[:3]) + " | " + ", ".join(findings)
    )
    cause_right, rank_right, cost_error = _diagnosis(ranked, fault, truth, findings)
    clock_error_us, bracket_holds = _clocks(analysis, truth)
    residual = max(abs(sum(r.parts_ns.values()) - r.window_ns) for r in analysis.ranks)
    waits = max(_wait_error(analysis, truth), _message_error(analysis, truth))
    return Score(
        case, cause_right, rank_right, cost_error, waits, clock_error_us, bracket_holds, residual, said, seconds
    )  # fmt: skip


def _diagnosis(
    ranked: Sequence[tuple[tuple[str, int | None], int]], fault: Truth | None, truth: Truth, findings: Sequence[str]
) -> tuple[bool, bool | None, float]:
    """Whether the costliest cause is the fault's, whether its rank is, and how far its cost is off.

    A fault that a pipeline's waiting takes up is none: nobody is to be blamed for it.
    """
    step = truth["step_ns"]
    if fault is None or (truth.get("pp_size") and fault["cost_ns_per_step"] < NOTICEABLE * step):
        blamed = set(findings) - {"balanced", "exposed-communication", "clock-uncertain", "pipeline-bubbles"}
        return "balanced" in findings and not blamed, None, max((ns for _, ns in ranked), default=0) / step
    if not ranked:
        return False, None, abs(fault["cost_ns_per_step"]) / step
    names = ALIASES.get(fault["cause"], (fault["cause"],))
    by_cause: dict[str, int] = defaultdict(int)
    for (name, _), ns in ranked:
        by_cause[fault["cause"] if name in names else name] += ns
    top = max(by_cause, key=lambda name: by_cause[name])
    rank = next((rank for (name, rank), _ in ranked if name == top or (top == fault["cause"] and name in names)), None)
    named = rank is not None and len(fault["ranks"]) < truth["ranks"]
    right = top == fault["cause"] and by_cause[top] >= NOTICEABLE * step
    error = abs(by_cause[fault["cause"]] - fault["cost_ns_per_step"])
    return right, rank in fault["ranks"] if named else None, error / step


def _wait_error(analysis: Analysis, truth: Truth) -> float:
    """Absolute errors of removable waits in all-to-alls with splits, over the time spent in them."""
    known = {
        (c["sequence"], rank): (c["removable_wait_ns"][i], c["end_ns"][i] - c["start_ns"][i])
        for c in truth["collectives"]
        if c["kind"] == "all_to_allv"
        for i, rank in enumerate(c["ranks"])
    }
    error = total = 0
    for collective in analysis.collectives:
        if (collective.phase or "").removesuffix(".bwd") not in {"dispatch", "combine"}:
            continue
        for member in collective.by_rank:
            wait, duration = known[collective.sequence, member.rank]
            error += abs(member.removable_wait_ns - wait)
            total += duration
    return error / total if total else 1.0


def _message_error(analysis: Analysis, truth: Truth) -> float:
    """The same of messages between pipeline stages; they are counted in their pair and direction."""
    known: dict[str, list[Truth]] = defaultdict(list)
    for message in truth["collectives"]:
        if message["kind"] == "p2p":
            known["{}->{}".format(*message["ranks"])].append(message)
    error = total = 0
    for collective in analysis.collectives:
        if collective.kind != "p2p" or len(collective.by_rank) < len(collective.group.split("->")):
            continue
        message = known[collective.group.split(" ")[-1]][collective.sequence]
        for member in collective.by_rank:
            at = message["ranks"].index(member.rank)
            error += abs(member.removable_wait_ns - message["removable_wait_ns"][at])
            total += message["end_ns"][at] - message["start_ns"][at]
    return error / total if total else 0.0


def _clocks(analysis: Analysis, truth: Truth) -> tuple[float, bool]:
    """Largest error of a host's clock in the middle of the run, and whether all brackets hold the truth."""
    middle = (truth["steps"][0]["start_ns"][0] + truth["steps"][-1]["end_ns"][0]) / 2
    worst, held = 0.0, True
    true = {host["host"]: host for host in truth["clock"]}
    reference = next(clock for clock in analysis.clock if clock.method in {"reference", "single host"})

    def offset(host: Truth, at: float) -> float:
        return float(host["offset_ns"] + host["drift_ppm"] * 1e-6 * (at - host["t0_ns"]))

    for clock in analysis.clock:
        host, base = true[clock.host], true[reference.host]
        estimate = clock.offset_ns + clock.drift_ppm * 1e-6 * (middle - clock.origin_ns)
        worst = max(worst, abs(estimate - (offset(host, middle) - offset(base, middle))))
        at_origin = offset(host, clock.origin_ns) - offset(base, clock.origin_ns)
        held &= clock.low_ns - 1 <= at_origin <= clock.high_ns + 1
    return worst / 1e3, held


@dataclass(frozen=True, slots=True)
class Row:
    """Scores of one fault on one layout, over seeds."""

    name: str
    scores: list[Score]

    def cells(self) -> list[str]:
        """The row as text."""
        ranks = [s.rank_right for s in self.scores if s.rank_right is not None]
        waits, costs = [s.wait_error for s in self.scores], [s.cost_error for s in self.scores]
        return [
            self.name,
            str(len(self.scores)),
            f"{np.mean([s.cause_right for s in self.scores]):.0%}",
            f"{np.mean(ranks):.0%}" if ranks else "-",
            f"{np.mean(costs):.2%}",
            f"{np.max(costs):.2%}",
            f"{np.mean(waits):.2%}",
            f"{np.max(waits):.2%}",
            f"{max(s.clock_error_us for s in self.scores):.2f}",
            f"{np.mean([s.bracket_holds for s in self.scores]):.0%}",
            str(max(s.residual_ns for s in self.scores)),
        ]


HEADER = ["fault, layout", "runs", "cause", "rank", "cost mean", "cost max", "wait mean", "wait max", "clock us"]
HEADER += ["bracket", "residual ns"]


def table(scores: Sequence[Score]) -> str:
    """One line per fault and layout, and one for all."""
    groups: dict[str, list[Score]] = defaultdict(list)
    for one in scores:
        groups[one.case.name].append(one)
    lines = [HEADER, *(Row(name, group).cells() for name, group in groups.items()), Row("all", list(scores)).cells()]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADER))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def goals(scores: Sequence[Score]) -> list[tuple[str, bool]]:
    """What must hold over all runs, and whether it does."""
    faulty = [s for s in scores if s.case.fault != "healthy"]
    healthy = [s for s in scores if s.case.fault == "healthy"]
    ranks = [s.rank_right for s in faulty if s.cause_right and s.rank_right is not None]
    found = [
        ("accounting residual 0 ns", all(s.residual_ns == 0 for s in scores)),
        ("mean error of removable wait <= 1 % of all-to-all time", np.mean([s.wait_error for s in scores]) <= 0.01),
        ("worst error of removable wait <= 5 %", max(s.wait_error for s in scores) <= 0.05),
        ("clock error <= 10 us", max(s.clock_error_us for s in scores) <= 10),
        ("the truth inside every bracket", all(s.bracket_holds for s in scores)),
        ("charged costs off by <= 5 % of the step", max(s.cost_error for s in scores) <= 0.05),
    ]
    if faulty:
        found.append(("top cause right >= 98 %", np.mean([s.cause_right for s in faulty]) >= 0.98))
        found.append(("the right rank in all of those", all(ranks)))
    if healthy:
        found.append(("healthy runs balanced >= 98 %", np.mean([s.cause_right for s in healthy]) >= 0.98))
    return [(text, bool(held)) for text, held in found]
