"""The runs that the attribution benchmark simulates: faults drawn by seed, on one host and on several."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from moescope.simulate import Model, Network, SimConfig, parse_fault
from moescope.simulate.network import Tier, exchange_ends

Rng = np.random.Generator

MODEL = Model(num_layers=4)
LARGE_MODEL = Model(num_layers=3)
LARGE = 32
"""From this many ranks on runs have the smaller model, and by default only the faults of ``CORE``."""
STEPS = 3
STAGED_MICROBATCHES = 4
"""In a step of a run with pipeline stages; one otherwise."""
TINY, TINY_AT_SCALE = (16, 32), (128, 192)
"""How many times as many experts; more where slow links between hosts carry most of the step, of which fewer would
cost less than the 2 % from which findings speak."""
SHEET_GAP = 0.9
"""Rows with a baseline have links this much slower than the data sheet's, so that only the baseline is right."""


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
    "slow_link_baseline": lambda rng, n: f"slow_link:rank={_rank(rng, n)},factor={rng.uniform(0.2, 0.5):.3f}",
    "host_jitter": lambda rng, n: f"host_jitter:rank={_rank(rng, n)},mean_us={rng.uniform(300, 700):.0f}",
    "data_loader_stall": lambda rng, n: f"data_loader_stall:rank={_rank(rng, n)},ms={rng.uniform(3, 30):.2f}",
    "gc_pause": lambda rng, n: f"gc_pause:rank={_rank(rng, n)},ms={rng.uniform(5, 20):.2f}",
    "allocator_stall": lambda rng, n: f"allocator_stall:rank={_rank(rng, n)},ms={rng.uniform(1, 6):.2f}",
    "near_full_memory": lambda rng, n: f"near_full_memory:rank={_rank(rng, n)},ms={rng.uniform(1, 5):.2f}",
    "tiny_experts": lambda rng, n: f"tiny_experts:factor={rng.choice(TINY if n < LARGE else TINY_AT_SCALE)}",
    "slow_rank_lost_events": lambda rng, n: (
        f"slow_rank:rank={_rank(rng, n)},factor={rng.uniform(1.2, 1.5):.3f} "
        f"lost_events:rank={_rank(rng, n)},which=random,count=3"
    ),
    "slow_rank_missing_rank": lambda rng, n: (
        f"slow_rank:rank={1 + _rank(rng, n - 1)},factor={rng.uniform(1.2, 1.5):.3f} missing_ranks:ranks=0"
    ),
}
"""Faults by the name of their row, drawn for a number of ranks."""

CORE = (
    "healthy", "expert_skew", "slow_rank", "slow_link", "host_jitter", "data_loader_stall", "gc_pause",
    "allocator_stall", "tiny_experts",
)  # fmt: skip
"""A row for each kind of fault."""


@dataclass(frozen=True, slots=True)
class Case:
    """One simulated run to analyse."""

    fault: str
    seed: int
    ranks: int
    ranks_per_host: int
    pipeline: int = 1

    @property
    def has_baseline(self) -> bool:
        """Whether the analysis is given what the machines could do when they were healthy."""
        return self.fault.endswith("_baseline")

    @property
    def name(self) -> str:
        """The row that the case belongs to."""
        hosts = self.ranks // self.ranks_per_host
        with_baseline = " with a baseline" if self.has_baseline else ""
        name = self.fault.removesuffix("_baseline") + with_baseline
        stages = f", {self.pipeline} stages" if self.pipeline > 1 else ""
        return f"{name}, {self.ranks} ranks, {hosts} host{'s' if hosts > 1 else ''}{stages}"

    @property
    def network(self) -> Network:
        """Of the simulated machines."""
        plain, scale = Network(), SHEET_GAP if self.has_baseline else 1.0
        return replace(
            plain,
            intra_bytes_per_ns=scale * plain.intra_bytes_per_ns,
            inter_bytes_per_ns=scale * plain.inter_bytes_per_ns,
        )

    def config(self) -> SimConfig:
        """What to simulate."""
        rng = np.random.default_rng([self.seed, self.ranks, *self.fault.encode()])
        faults = [text for text in FAULTS[self.fault](rng, self.ranks).split() if text]
        faults += ["clock"] if self.ranks_per_host < self.ranks else []
        return SimConfig(
            ranks=self.ranks, ranks_per_host=self.ranks_per_host, steps=STEPS, pipeline=self.pipeline,
            microbatches=STAGED_MICROBATCHES if self.pipeline > 1 else 1,
            model=LARGE_MODEL if self.ranks >= LARGE else MODEL, network=self.network, seed=self.seed,
            faults=tuple(parse_fault(text) for text in faults), measured_clock=False,
        )  # fmt: skip


def cases(faults: Iterable[str], seeds: int, ranks: Iterable[int], pipeline: int = 1) -> list[Case]:
    """Every fault, seed and number of ranks; on one host and on several. Seed by seed, so that an early end still
    leaves every row some runs."""
    return [
        Case(fault, seed, count, per_host, pipeline)
        for seed in range(seeds)
        for count in ranks
        for per_host in (count, 8 if count > 8 else count // 2)
        for fault in faults
    ]


def write_baseline(case: Case, file: Path) -> Path:
    """What ``moescope baseline`` would have measured on the case's machines without the fault."""
    config = case.config()
    hosts = np.arange(min(config.ep, config.ranks)) // config.ranks_per_host
    n, same = len(hosts), hosts[:, None] == hosts[None]
    network, ports = config.network, np.ones((1, len(hosts)))
    tiers = tuple(
        Tier(pairs, rate * ports, rate * ports, latency)
        for pairs, rate, latency in (
            (same, network.intra_bytes_per_ns, network.intra_latency_ns),
            (~same, network.inter_bytes_per_ns, network.inter_latency_ns),
        )
    )
    rows = []
    for size in (2**20, 2**23, 2**25, 2**27):
        sizes = np.full((1, n, n), size / n)
        time_ns = float(exchange_ends(sizes, np.zeros((1, n)), tiers, network.local_bytes_per_ns).max())
        remote = size * (n - 1) / n
        rows.append(
            {
                "collective": "all_to_all",
                "size_bytes": size,
                "time_us": time_ns / 1e3,
                "busbw_gb_per_s": remote / time_ns,
            }
        )
    found = {"schema": "moescope.baseline/1", "basis": "simulated", "device": config.device.name,
             "hosts": sorted({config.host_name(host) for host in hosts}), "collectives": rows}  # fmt: skip
    file.write_text(json.dumps(found))
    return file
