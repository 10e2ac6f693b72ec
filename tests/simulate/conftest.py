"""Small configurations, quick to simulate."""

from __future__ import annotations

from pathlib import Path

import pytest

from moescope.simulate import Model, SimConfig, parse_fault, simulate
from moescope.simulate.simulation import Simulation, run_simulation

TINY = Model(
    num_layers=3, hidden=2048, num_heads=16, sequence=4096, num_experts=16, top_k=2, expert_hidden=2048,
    dense_hidden=4096, vocabulary=2048,
)  # fmt: skip


def tiny(*faults: str, **fields: object) -> SimConfig:
    """A run of seconds' hundredths: 4 ranks on 2 hosts, 2 steps, 3 layers of which the first is dense."""
    plain: dict[str, object] = {"ranks": 4, "ranks_per_host": 2, "steps": 2, "tokens": 4096, "model": TINY}
    return SimConfig(faults=tuple(parse_fault(f) for f in faults), **{**plain, **fields})  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def healthy() -> Simulation:
    """A run without faults."""
    return run_simulation(tiny())


@pytest.fixture(scope="session")
def healthy_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the same run."""
    return simulate(tiny(), tmp_path_factory.mktemp("simulated") / "healthy")
