"""Simulate a run, before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from moescope.simulate.clocks import HostClocks, host_clocks
from moescope.simulate.config import SimConfig
from moescope.simulate.engine import Engine, Record, Run
from moescope.simulate.groups import Groups
from moescope.simulate.layers import Microbatch
from moescope.simulate.memory import RankMemory, rank_memory
from moescope.simulate.scenario import Scenario, scenarios_of
from moescope.simulate.step import build_step

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Simulation:
    """A simulated run before anything is written."""

    config: SimConfig
    scenarios: tuple[Scenario, ...]
    groups: dict[str, Groups]
    run: Run
    steps: list[list[Microbatch]]
    clocks: HostClocks
    memory: list[RankMemory]

    def records_of(self, rank: int) -> list[Record]:
        """What a rank did itself: all records but those of other pipeline stages."""
        return records_of(self.config, self.run, rank)


def records_of(config: SimConfig, run: Run, rank: int) -> list[Record]:
    """A rank's own records."""
    return [record for record in run.records if record.op.stage in {None, config.stage_of(rank)}]


def run_simulation(config: SimConfig, progress: Progress | None = None) -> Simulation:
    """Simulate ``config``; ``progress`` is told (done, total, label)."""
    scenarios = scenarios_of(config)
    engine = Engine(config, scenarios)
    steps = []
    for index in range(config.steps):
        if progress:
            progress(index, config.steps, f"step {config.first_step + index}")
        program, microbatches = build_step(config, scenarios, config.first_step + index)
        engine.execute(program, config.first_step + index)
        steps.append(microbatches)
    run = engine.finish()
    memory = [rank_memory(config, engine.groups, records_of(config, run, rank), rank) for rank in range(config.ranks)]
    return Simulation(config, scenarios, engine.groups, run, steps, host_clocks(config), memory)
