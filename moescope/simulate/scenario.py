"""The run and its counterfactuals, simulated side by side on the same random draws."""

from __future__ import annotations

from dataclasses import dataclass

from moescope.simulate.config import SimConfig
from moescope.simulate.faults import ExpertSkew, Fault

Faults = tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One variant of the run."""

    name: str
    faults: Faults
    compute: Faults
    """Faults under which the routing is drawn that the experts' kernels compute; other than ``faults`` only to tell
    the cost of computing uneven rows from that of moving them."""


def scenarios_of(config: SimConfig) -> tuple[Scenario, ...]:
    """The run itself first; then, for each fault that can cost time, the run without it."""
    found = [Scenario("run", config.faults, config.faults)]
    for fault in config.faults:
        if fault.cause is None:
            continue
        rest = tuple(f for f in config.faults if f is not fault)
        found.append(Scenario(without(fault), rest, rest))
        if isinstance(fault, ExpertSkew):
            found.append(Scenario(without_compute(fault), config.faults, rest))
    if len([f for f in config.faults if f.cause is not None]) > 1:
        healthy = tuple(f for f in config.faults if f.cause is None)
        found.append(Scenario("healthy", healthy, healthy))
    return tuple(found)


def without(fault: Fault) -> str:
    """Name of the scenario without a fault."""
    return f"without {fault.describe()}"


def without_compute(fault: Fault) -> str:
    """Name of the scenario in which a skew moves bytes but costs no expert time."""
    return f"even compute under {fault.describe()}"
