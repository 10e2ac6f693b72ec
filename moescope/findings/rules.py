"""Rules: numbers in, findings out. Each rule says when it speaks, what it costs and how sure it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import polars as pl

from moescope.attribution.memory import MemoryProfile
from moescope.findings.culprits import Advice, culprits, top_layer
from moescope.findings.inputs import Inputs, cost_by_rank
from moescope.findings.model import Finding
from moescope.findings.rules_baseline import below_baseline
from moescope.findings.rules_clock import clock_uncertain, clocks_contradict
from moescope.findings.rules_host import device_idle, host_bound, late_host
from moescope.findings.rules_load import dropped_tokens, router_collapse
from moescope.findings.rules_network import slow_network
from moescope.findings.rules_pipeline import pipeline_bubbles
from moescope.findings.rules_rank import RANK_RULES
from moescope.findings.scale import NOTICEABLE, STANDS_OUT, ms, severity

EXPOSED_SHARE = 0.10
FLOOR_FACTOR = 1.5
"""Load imbalance below this many times the random-routing level is noise."""
MEMORY_NEAR_FULL = 0.90
MEMORY_SPREAD = 1.30

Rule = Callable[[Inputs], Iterator[Finding]]


def load_imbalance(inputs: Inputs) -> Iterator[Finding]:
    """Ranks wait for ranks that received more tokens."""
    causes = inputs.cause_ns("expert_load")
    cost = float(causes["cost_ns"].sum())
    share = inputs.share(cost)
    if causes.is_empty() or share < NOTICEABLE:
        return
    top = int(causes["culprit"][0])
    share_of_top = float(causes["cost_ns"][0]) / cost
    is_one_rank = share_of_top >= min(STANDS_OUT / len(inputs.ranks), 0.6)
    rank = top if is_one_rank else None
    intervals = inputs.load_intervals
    violation = _mean(intervals, "maxvio_rank")
    if violation is not None and violation < FLOOR_FACTOR * inputs.load_floor_rank:
        return
    who = f"most for rank {top}" if is_one_rank else "and the hottest rank changes between layers and microbatches"
    level = f", {1 + violation:.2f} times the mean load on the hottest rank" if violation is not None else ""
    yield Finding(
        code="load-imbalance",
        severity=severity(share),
        rank=rank,
        layer=top_layer(inputs, "expert_load", rank),
        cost_ns_per_step=round(cost),
        share_of_step=share,
        claim=f"The step is {ms(cost)} longer than with even expert load: ranks wait for those that received more "
        f"tokens, {who}{level}.",
        advice="Strengthen the balancing objective (or its bias update), or place the hot experts on different ranks; "
        "a run with forced uniform routing shows the ceiling.",
        confidence=inputs.confidence(cost),
        basis=inputs.finding_basis,
        evidence={
            "page": "load",
            "maxvio_rank": violation,
            "maxvio_rank_random_floor": inputs.load_floor_rank,
            "counts_from": inputs.load_source,
            "hottest_rank": top,
            "share_of_cost_of_hottest_rank": share_of_top,
            "share_of_intervals_where_hottest": _share_hottest(intervals, top),
            "cost_by_rank_ns": cost_by_rank(causes),
            "cost_in_transfers_ns": round(float(causes["transfer_ns"].sum())),
            "formula": "removable waits charged to extra rows of the late rank, averaged over all ranks, and "
            "(bottleneck - mean) bytes / bandwidth of exchanges that the loaded rank holds up",
        },
    )


def _mean(frame: pl.DataFrame, column: str) -> float | None:
    value = frame[column].mean() if len(frame) else None
    return float(value) if isinstance(value, int | float) else None


def _share_hottest(intervals: pl.DataFrame, rank: int) -> float | None:
    return float((intervals["hottest_rank"] == rank).sum() / len(intervals)) if len(intervals) else None


def slow_rank(inputs: Inputs) -> Iterator[Finding]:
    """A rank takes longer than its peers for the same work."""
    yield from culprits(
        inputs,
        cause="slow_rank",
        code="slow-rank",
        claim="Rank {rank} takes longer than its peers for the same work; the others wait {cost} per step for it",
        advice=Advice(
            "Compare clocks, temperature and power of that device with its neighbours, look for another process on "
            "its host, and swap the node if it stays slow.",
            "Look for other work on that rank's cores: more threads than cores, or another process.",
        ),
    )


def volume_imbalance(inputs: Inputs) -> Iterator[Finding]:
    """Exchanges last as long as the rank with most bytes needs."""
    causes = inputs.cause_ns("volume_imbalance")
    cost = float(causes["cost_ns"].sum())
    share = inputs.share(cost)
    if share < NOTICEABLE:
        return
    stands_out = float(causes["cost_ns"][0]) >= min(STANDS_OUT / len(inputs.ranks), 0.6) * cost
    rank = int(causes["culprit"][0]) if stands_out and causes["culprit"][0] is not None else None
    yield Finding(
        code="volume-imbalance",
        severity=severity(share),
        rank=rank,
        layer=top_layer(inputs, "volume_imbalance", rank),
        cost_ns_per_step=round(cost),
        share_of_step=share,
        claim=f"All-to-alls last {ms(cost)} per step longer than with even volumes"
        + (f", because rank {rank} sends or receives most." if rank is not None else "."),
        advice="Balance the experts' load or their placement: the busiest rank's link sets the pace of the exchange.",
        confidence="medium",
        basis=inputs.finding_basis,
        evidence={
            "page": "communication",
            "cost_by_rank_ns": cost_by_rank(causes),
            "formula": "(bottleneck - mean) bytes / fitted bandwidth, exposed part, slowest group of each turn",
        },
    )


def exposed_communication(inputs: Inputs) -> Iterator[Finding]:
    """Transfers that no compute hides."""
    transfer = inputs.mean_part_ns("comm.", ".transfer")
    share = inputs.share(transfer)
    if share < EXPOSED_SHARE:
        return
    by_kind = {
        kind: round(inputs.mean_part_ns(f"comm.{kind}.", ".transfer")) for kind in ("all_to_all", "reduction", "other")
    }
    largest = max(by_kind, key=lambda kind: by_kind[kind])
    is_partial = len(inputs.ranks) < inputs.world_size
    what = "transfer, or waiting for ranks whose traces are missing," if is_partial else "transfer"
    yield Finding(
        code="exposed-communication",
        severity="warning",
        rank=None,
        layer=None,
        cost_ns_per_step=round(transfer),
        share_of_step=share,
        claim=f"{ms(transfer)} of every step is {what} that no compute hides, mostly {largest.replace('_', '-')}.",
        advice="Overlap dispatch and combine with compute of another microbatch or the shared expert, send fewer bytes "
        "(lower precision, fewer ranks per group), or move expert groups inside a host. The cost is an upper bound.",
        confidence="medium",
        basis=inputs.finding_basis,
        evidence={
            "page": "communication",
            "is_upper_bound": True,
            "transfer_by_kind_ns": by_kind,
            "formula": "mean over ranks of exposed transfer",
        },
    )


def memory_peak(inputs: Inputs) -> Iterator[Finding]:
    """A rank near its device's capacity, or far above the others."""
    if not inputs.memory:
        return
    means = _mean_peaks(inputs)
    rank = max(inputs.memory, key=lambda r: inputs.memory[r].allocated_peak_bytes)
    if _filled(inputs.memory[rank]) < MEMORY_NEAR_FULL:
        rank = max(inputs.memory, key=lambda r: inputs.memory[r].allocated_peak_bytes / max(means[r], 1.0))
    top, mean = inputs.memory[rank], means[rank]
    filled = _filled(top)
    spread = top.allocated_peak_bytes / mean if mean else 1.0
    if filled < MEMORY_NEAR_FULL and (spread < MEMORY_SPREAD or len(inputs.memory) < 2):
        return
    near_full = f"{filled:.0%} of its device's memory" if filled >= MEMORY_NEAR_FULL else ""
    of_stage = " of its pipeline stage" if len(set(inputs.stages().values())) > 1 else ""
    above = f"{spread:.2f} times the mean rank{of_stage}" if spread >= MEMORY_SPREAD else ""
    yield Finding(
        code="memory-peak",
        severity="warning" if near_full else "info",
        rank=rank,
        layer=None,
        cost_ns_per_step=0,
        share_of_step=0.0,
        claim=f"Rank {rank} peaks at {top.allocated_peak_bytes / 2**20:.1f} MiB allocated in {top.peak_phase}: "
        f"{' and '.join(text for text in (near_full, above) if text)}.",
        advice="Balance the experts' load, bound it by a capacity factor, or recompute expert activations; a busy rank "
        "runs out of memory first.",
        confidence="high",
        basis=inputs.finding_basis,
        evidence={
            "page": "memory",
            "allocated_peak_bytes": top.allocated_peak_bytes,
            "reserved_peak_bytes": top.reserved_peak_bytes,
            "capacity_bytes": top.capacity_bytes,
            "mean_rank_peak_bytes": round(mean),
            "reserved_beyond_allocated_bytes": _beyond(top),
            **inputs.token_memory.get(rank, {}),
        },
    )


def _mean_peaks(inputs: Inputs) -> dict[int, float]:
    """By rank, the mean peak of the ranks of its pipeline stage: stages hold different layers."""
    stages = inputs.stages()
    peaks: dict[int, list[int]] = {}
    for rank, memory in inputs.memory.items():
        peaks.setdefault(stages.get(rank, 0), []).append(memory.allocated_peak_bytes)
    return {rank: sum(mine := peaks[stages.get(rank, 0)]) / len(mine) for rank in inputs.memory}


def _filled(memory: MemoryProfile) -> float:
    """Share of the device's capacity."""
    used = memory.reserved_peak_bytes or memory.allocated_peak_bytes
    return used / memory.capacity_bytes if memory.capacity_bytes else 0.0


def _beyond(memory: MemoryProfile) -> int | None:
    """What the allocator held beside the peak: cache and fragmentation."""
    at_peak = memory.reserved_at_peak_bytes
    return at_peak - memory.allocated_peak_bytes if at_peak is not None else None


def incomplete_input(inputs: Inputs) -> Iterator[Finding]:
    """Missing ranks, damaged files, collectives that do not match."""
    absent = sorted(set(range(inputs.world_size)) - set(inputs.ranks))
    refused = [f"{refusal.group}: {refusal.reason}" for refusal in inputs.alignment.refusals]
    texts = []
    if absent:
        texts.append(f"{len(absent)} of {inputs.world_size} ranks are missing ({_few(absent)})")
    if inputs.problems:
        texts.append(f"{len(inputs.problems)} reading problems, first: {inputs.problems[0]}")
    if refused:
        texts.append(f"{len(refused)} groups could not be matched, first {refused[0]}")
    if inputs.alignment.num_unmatched and not absent:
        texts.append(f"{inputs.alignment.num_unmatched} collectives have no counterpart on the other ranks")
    lacking = inputs.lost_parts()
    if lost := sum(lacking.values()):
        texts.append(f"{lost} collectives lack the part of {_ranks(lacking)}, whose trace lost it or begins too late")
    if not texts:
        return
    lost_input = {
        "missing_ranks": absent[:64],
        "problems": inputs.problems[:20],
        "refused": refused[:20],
        "ranks_that_lost_collectives": sorted(lacking)[:64],
    }
    yield Finding(
        code="incomplete-input",
        severity="warning" if inputs.problems or refused or len(absent) < inputs.world_size - 1 else "info",
        rank=absent[0] if len(absent) == 1 else None,
        layer=None,
        cost_ns_per_step=0,
        share_of_step=0.0,
        claim=f"The input is incomplete: {'; '.join(texts)}.",
        advice="Record every rank of the same window; waits for missing ranks cannot be known and count as transfer.",
        confidence="high",
        basis="inferred",
        evidence={"page": "run", **{name: list(entries) for name, entries in lost_input.items() if entries}},
    )


def _ranks(ranks: Iterable[int]) -> str:
    listed = sorted(ranks)
    return f"rank {listed[0]}" if len(listed) == 1 else f"ranks {_few(listed)}"


def _few(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:6])) + (", ..." if len(ranks) > 6 else "")


RULES: tuple[Rule, ...] = (
    load_imbalance,
    slow_rank,
    late_host,
    slow_network,
    below_baseline,
    volume_imbalance,
    pipeline_bubbles,
    exposed_communication,
    host_bound,
    device_idle,
    *RANK_RULES,
    router_collapse,
    dropped_tokens,
    memory_peak,
    clock_uncertain,
    clocks_contradict,
    incomplete_input,
)
"""In the order of diagnosis."""
