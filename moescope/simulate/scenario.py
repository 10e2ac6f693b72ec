"""The run and its counterfactuals, simulated side by side on the same random draws."""

from __future__ import annotations

from dataclasses import dataclass

from moescope.simulate.config import SimConfig
from moescope.simulate.faults import Fault


@dataclass(frozen=True, slots=True)
class Scenario:
    """One variant of the run."""

    name: str
    faults: tuple[Fault, ...]
    even_compute: bool = False
    """Experts run as if every rank had received the mean; bytes stay as they are."""


def scenarios_of(config: SimConfig) -> tuple[Scenario, ...]:
    """The run itself first; then, for each fault that can cost time, the run without it."""
    costly = [f for f in config.faults if f.cause is not None]
    run = Scenario("run", config.faults)
    without = [Scenario(f"without {f.describe()}", tuple(g for g in config.faults if g is not f)) for f in costly]
    return (run, *without)
