"""Hold the analysis against simulated runs whose truth is known, and print one table.

    python benchmarks/attribution.py                      # all faults, 8 seeds, 8 and 64 ranks, one and several hosts
    python benchmarks/attribution.py --seeds 2 --ranks 8 --faults slow_rank expert_skew
    python benchmarks/attribution.py --scale 1024         # time and memory of one large step

Each seed draws the rank at fault, how strong the fault is, and, on several hosts, clocks up to 50 ms off that drift
up to 30 ppm. Exit code 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from moescope.simulate import Model, SimConfig, parse_fault, simulate
from moescope.views.build import analyze
from moescope.views.model import Analysis

Rng = np.random.Generator
Truth = dict[str, Any]

MODEL = Model(num_layers=4)
STEPS = 3


def _rank(rng: Rng, ranks: int) -> int:
    return int(rng.integers(ranks))


FAULTS: dict[str, Callable[[Rng, int], str]] = {
    "healthy": lambda _rng, _n: "",
    "expert_skew": lambda rng, n: f"expert_skew:rank={_rank(rng, min(n, 16))},factor={rng.uniform(1.3, 2.5):.3f}",
    "expert_skew_zipf": lambda rng, n: (
        f"expert_skew:rank={_rank(rng, min(n, 16))},factor={rng.uniform(1.3, 2):.3f},zipf={rng.uniform(0.1, 0.4):.3f}"
    ),
    "slow_rank": lambda rng, n: f"slow_rank:rank={_rank(rng, n)},factor={rng.uniform(1.1, 1.5):.3f}",
    "slow_rank_ramp": lambda rng, n: (
        f"slow_rank:rank={_rank(rng, n)},factor={rng.uniform(1.2, 1.6):.3f},shape=ramp,period_ms=60"
    ),
    "slow_rank_periodic": lambda rng, n: (
        f"slow_rank:rank={_rank(rng, n)},factor={rng.uniform(1.3, 1.8):.3f},shape=periodic,period_ms=20"
    ),
    "slow_link": lambda rng, n: f"slow_link:rank={_rank(rng, n)},factor={rng.uniform(0.2, 0.5):.3f}",
    "host_jitter": lambda rng, n: f"host_jitter:rank={_rank(rng, n)},mean_us={rng.uniform(300, 700):.0f}",
    "data_loader_stall": lambda rng, n: f"data_loader_stall:rank={_rank(rng, n)},ms={rng.uniform(3, 30):.2f}",
    "gc_pause": lambda rng, n: f"gc_pause:rank={_rank(rng, n)},ms={rng.uniform(5, 20):.2f}",
    "allocator_stall": lambda rng, n: f"allocator_stall:rank={_rank(rng, n)},ms={rng.uniform(1, 6):.2f}",
    "near_full_memory": lambda rng, n: f"near_full_memory:rank={_rank(rng, n)},ms={rng.uniform(1, 5):.2f}",
    "tiny_experts": lambda rng, _n: f"tiny_experts:factor={rng.choice([16, 32])}",
    "slow_rank_lost_events": lambda rng, n: (
        f"slow_rank:rank={_rank(rng, n)},factor={rng.uniform(1.2, 1.5):.3f} "
        f"lost_events:rank={_rank(rng, n)},which=random,count=3"
    ),
    "slow_rank_missing_rank": lambda rng, n: (
        f"slow_rank:rank={1 + _rank(rng, n - 1)},factor={rng.uniform(1.2, 1.5):.3f} missing_ranks:ranks=0"
    ),
}
"""Faults by the name of their row, drawn for a number of ranks."""

SPAWN = multiprocessing.get_context("spawn")
"""A forked child would inherit polars' threads as locks that nobody opens."""
ALIASES = {"expert_load": ("expert_load", "volume_imbalance")}
"""A skew shows as uneven expert time and as uneven transfers; either names it, and both together are its cost."""
UNWAITED = {"small-gemm": "small_gemm", "slow-network": "slow_network"}
"""Findings of what costs every rank alike, so that none waits for another, and the cause that each stands for."""
NOTICEABLE = 0.005
"""Share of the step below which a charge counts as nothing found."""


@dataclass(frozen=True, slots=True)
class Case:
    """One simulated run to analyse."""

    fault: str
    seed: int
    ranks: int
    ranks_per_host: int

    def config(self) -> SimConfig:
        """What to simulate."""
        rng = np.random.default_rng([self.seed, self.ranks, *self.fault.encode()])
        faults = [text for text in FAULTS[self.fault](rng, self.ranks).split() if text]
        faults += ["clock"] if self.ranks_per_host < self.ranks else []
        return SimConfig(
            ranks=self.ranks, ranks_per_host=self.ranks_per_host, steps=STEPS, microbatches=1, model=MODEL,
            seed=self.seed, faults=tuple(parse_fault(text) for text in faults), measured_clock=False,
        )  # fmt: skip


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
    """Removable wait: sum of absolute errors over the time in all-to-alls."""
    clock_error_us: float
    bracket_holds: bool
    residual_ns: int
    said: str
    """Causes and findings, for reading."""
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that could not be simulated or analysed."""

    case: Case
    why: str


def run(case: Case) -> Score | Failure:
    """Simulate, analyse, compare; a crash is a result too."""
    folder = Path(tempfile.mkdtemp(prefix="moescope-attribution-"))
    try:
        began = time.perf_counter()
        path = simulate(case.config(), folder / "run")
        simulated = time.perf_counter()
        analysis = analyze(path, workers=1, cache=False)
        seconds = {"simulate": simulated - began, "analyze": time.perf_counter() - simulated}
        return score(case, analysis, json.loads((path / "truth.json").read_text()), seconds)
    except Exception as error:
        return Failure(case, "".join(traceback.format_exception(error)[-3:]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def score(case: Case, analysis: Analysis, truth: Truth, seconds: dict[str, float]) -> Score:
    """Compare an analysis with the truth."""
    costs: dict[tuple[str, int | None], int] = defaultdict(int)
    for cause in analysis.causes:
        costs[cause.cause, cause.rank] += cause.cost_ns_per_step
    for finding in analysis.findings:
        unwaited = UNWAITED.get(finding.code)
        if unwaited and not any(name == unwaited for name, _ in costs):
            costs[unwaited, finding.rank] = finding.cost_ns_per_step
    ranked = sorted(costs.items(), key=lambda item: -item[1])
    fault = next((f for f in truth["faults"] if f["cause"]), None)
    findings = [f.code for f in analysis.findings]
    said = (
        ", ".join(f"{name} {rank} {ns / 1e6:.2f} ms" for (name, rank), ns in ranked[:3]) + " | " + ", ".join(findings)
    )
    cause_right, rank_right, cost_error = _diagnosis(ranked, fault, truth, findings)
    clock_error_us, bracket_holds = _clocks(analysis, truth)
    residual = max(abs(sum(r.parts_ns.values()) - r.window_ns) for r in analysis.ranks)
    waits = _wait_error(analysis, truth)
    return Score(
        case, cause_right, rank_right, cost_error, waits, clock_error_us, bracket_holds, residual, said, seconds
    )  # fmt: skip


def _diagnosis(
    ranked: Sequence[tuple[tuple[str, int | None], int]], fault: Truth | None, truth: Truth, findings: Sequence[str]
) -> tuple[bool, bool | None, float]:
    """Whether the costliest cause is the fault's, whether its rank is, and how far its cost is off."""
    step = truth["step_ns"]
    if fault is None:
        blamed = set(findings) - {"balanced", "exposed-communication", "clock-uncertain"}
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
        if collective.phase not in {"dispatch", "combine"}:
            continue
        for member in collective.by_rank:
            wait, duration = known[collective.sequence, member.rank]
            error += abs(member.removable_wait_ns - wait)
            total += duration
    return error / total if total else 1.0


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
        hosts = one.case.ranks // one.case.ranks_per_host
        groups[f"{one.case.fault}, {one.case.ranks} ranks, {hosts} host{'s' if hosts > 1 else ''}"].append(one)
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


def cases(faults: Iterable[str], seeds: int, ranks: Iterable[int]) -> list[Case]:
    """Every fault, seed and number of ranks; on one host and on several."""
    return [
        Case(fault, seed, count, per_host)
        for count in ranks
        for per_host in (count, 8 if count > 8 else count // 2)
        for fault in faults
        for seed in range(seeds)
    ]


def measure_scale(ranks: int) -> None:
    """Simulate and analyse one step of many ranks; print time and peak memory."""
    folder = Path(tempfile.mkdtemp(prefix="moescope-scale-"))
    try:
        config = SimConfig(
            ranks=ranks, ep_size=min(64, ranks), steps=1, microbatches=1, model=MODEL,
            faults=(parse_fault(f"slow_rank:rank={ranks // 3}"), parse_fault("clock")),
        )  # fmt: skip
        began = time.perf_counter()
        path = simulate(config, folder / "run")
        simulated = time.perf_counter()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        size = sum(p.stat().st_size for p in (path / "traces").iterdir())
        with ProcessPoolExecutor(1, mp_context=SPAWN) as pool:
            seconds, peak, said = pool.submit(_analyze_apart, path).result()
        print(f"{ranks} ranks, 1 step, {size / 1e6:.0f} MB of traces: simulated in {simulated - began:.0f} s "
              f"({before / 1e6:.2f} GB), analysed in {seconds:.0f} s ({peak / 1e6:.2f} GB)\n{said}")  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _analyze_apart(path: Path) -> tuple[float, int, str]:
    began = time.perf_counter()
    analysis = analyze(path, workers=1)
    said = "\n".join(f"{f.code} rank {f.rank}: {f.claim}" for f in analysis.findings)
    return time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, said


def main() -> int:
    """Run the cases and print the table, the goals and what went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--json", type=Path, help="write every score here")
    parser.add_argument("--scale", type=int, metavar="RANKS", help="only time and memory of one step of so many ranks")
    args = parser.parse_args()
    if args.scale:
        measure_scale(args.scale)
        return 0
    todo = cases(args.faults, args.seeds, args.ranks)
    scores: list[Score] = []
    failures: list[Failure] = []
    with ProcessPoolExecutor(args.jobs, mp_context=SPAWN) as pool:
        for done, result in enumerate(pool.map(run, todo), 1):
            if isinstance(result, Failure):
                failures.append(result)
            else:
                scores.append(result)
            said = result.why if isinstance(result, Failure) else result.said
            print(f"{done} of {len(todo)}: {result.case.fault} seed {result.case.seed}: {said}", file=sys.stderr)
    if args.json:
        args.json.write_text(json.dumps([asdict(s) for s in scores], indent=1))
    return report(scores, failures)


def report(scores: Sequence[Score], failures: Sequence[Failure]) -> int:
    """Print the table, the goals and what went wrong; return the exit code."""
    for failure in failures:
        print(f"FAILED  {failure.case}\n{failure.why}")
    if not scores:
        return 1
    print(table(scores))
    held = [("every run analysed", not failures), *goals(scores)]
    for text, good in held:
        print(f"{'holds ' if good else 'MISSED'}  {text}")
    for one in scores:
        if not one.cause_right or one.rank_right is False:
            print(f"  {one.case}: {one.said}")
    return 0 if all(good for _, good in held) else 1


if __name__ == "__main__":
    sys.exit(main())
