"""What the rules look at: results of the earlier stages, gathered once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from moescope.align import Alignment
from moescope.align.baseline import Baseline
from moescope.attribution import Attribution
from moescope.attribution.allocator import AllocatorCalls
from moescope.attribution.delays import CAUSE, Excess
from moescope.attribution.gemm.ranks import Gemms
from moescope.attribution.memory import MemoryProfile


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs of all rules."""

    basis: str
    """Of the input: ``measured``, ``simulated`` or ``unknown``."""
    world_size: int
    ranks: tuple[int, ...]
    alignment: Alignment
    attribution: Attribution
    load_intervals: pl.DataFrame
    """``load.intervals``; empty where no counts are known."""
    load_floor_rank: float
    """MaxVio over ranks that uniformly random routing would give."""
    load_source: str
    memory: Mapping[int, MemoryProfile]
    problems: Sequence[str]
    """What reading lost, in words."""
    load_layers: pl.DataFrame = field(default_factory=pl.DataFrame)
    """``layer, entropy, dead_share, dropped_share``; null where not recorded, empty where no counts are known."""
    gemms: Gemms | None = None
    """Matrix operations; None where no shape is recorded."""
    baseline: Baseline | None = None
    """What the machines can do, where it was measured."""
    allocator: Mapping[int, AllocatorCalls] = field(default_factory=dict)
    """Calls of the driver's allocator by rank."""
    token_memory: Mapping[int, Mapping[str, float | None]] = field(default_factory=dict)
    """By rank, what received tokens take of its memory and when it runs out: evidence; empty where not known."""
    idle_causes: pl.DataFrame = field(default_factory=pl.DataFrame)
    """``rank, kind, operation, detail, ns_per_step``: what devices' idle time goes back to; empty where not known."""
    gemm_path_loss_ns: float | None = None
    """What the experts' products on the critical path lose per step."""

    @property
    def step_ns(self) -> float:
        return self.attribution.step_ns

    def share(self, cost_ns: float) -> float:
        """Of the step."""
        return cost_ns / self.step_ns if self.step_ns > 0 else 0.0

    @property
    def finding_basis(self) -> str:
        """Numbers follow their input; traces without provenance were measured by somebody."""
        return "simulated" if self.basis == "simulated" else "measured"

    def mean_part_ns(self, prefix: str, suffix: str = "") -> float:
        """Mean over ranks and steps of all parts whose name starts and ends so."""
        parts = self.attribution.parts
        if parts.is_empty():
            return 0.0
        chosen = parts.filter(pl.col("part").str.starts_with(prefix) & pl.col("part").str.ends_with(suffix))
        return float(chosen["ns"].sum()) / max(parts.select("rank", "step").n_unique(), 1)

    def cause_ns(self, cause: str) -> pl.DataFrame:
        """``culprit, cost_ns, charged_ns, transfer_ns`` of one cause, summed over layers, largest first."""
        mine = self.attribution.causes.filter(pl.col("cause") == cause)
        by_rank = mine.group_by("culprit", maintain_order=True).agg(
            pl.col("cost_ns", "charged_ns", "transfer_ns").sum()
        )
        return by_rank.sort(["cost_ns", "culprit"], descending=[True, False])

    def pipeline_wait_ns(self) -> float:
        """Per step, what ranks wait on average for other pipeline stages without anybody being late in its stage."""
        return float(self.cause_ns(CAUSE[Excess.PIPELINE])["cost_ns"].sum())

    def stages(self) -> dict[int, int]:
        """The pipeline stage of every rank that takes part in a collective; all in stage 0 without a pipeline."""
        rows = self.alignment.collectives
        return dict(rows.select("rank", "stage").unique().iter_rows()) if "stage" in rows.columns else {}

    def has_lone_ranks(self) -> bool:
        """Whether some pipeline stage has a single rank, which nothing can be compared with."""
        return 1 in Counter(self.stages().values()).values()

    def is_on_cpu(self, rank: int) -> bool:
        """Whether the rank's trace has no device, so that threads stand for it."""
        timeline = self.attribution.timelines.get(rank)
        return timeline is not None and not timeline.on_gpu

    def heaviest_step(self, cause: str, rank: int) -> tuple[int | None, float]:
        """The step in which the rank's cost of this cause is largest, and its share of the cost over all steps."""
        charges = self.attribution.charges
        if charges.is_empty():
            return None, 0.0
        mine = charges.filter((pl.col("cause") == cause) & (pl.col("culprit") == rank))
        by_step = mine.group_by("step").agg(pl.col("cost_ns").sum().clip(0)).sort("cost_ns", "step", descending=True)
        total = float(by_step["cost_ns"].sum())
        return (by_step["step"][0], float(by_step["cost_ns"][0]) / total) if total > 0 else (None, 0.0)

    def lost_parts(self) -> dict[int, int]:
        """Collectives that other ranks recorded and this one, whose trace is there, did not; by rank."""
        rows = self.alignment.collectives
        if rows.is_empty() or self._is_matched():
            return {}
        rows = rows.filter(pl.col("kind") != "p2p")  # of a message that one side lacks, either may have lost another
        present = rows.group_by("instance").agg(pl.col("members").first(), there=pl.col("rank"))
        absent = present.select(rank=pl.col("members").list.set_difference("there")).explode("rank").drop_nulls()
        counts = absent.filter(pl.col("rank").is_in(list(self.ranks))).group_by("rank").len().sort("rank")
        return {int(rank): int(count) for rank, count in counts.iter_rows()}

    def confidence(self, cost_ns: float) -> str:
        """High where clocks are exact and all ranks are there, low where the clocks' uncertainty rivals the cost."""
        clocks = self.alignment.clocks
        unknown = any(clock.contradictory for clock in clocks) or any(clock.num_anchors == 0 for clock in clocks[1:])
        if unknown or (cost_ns and self.clock_uncertainty_ns() > 0.5 * cost_ns):
            return "low"
        is_complete = len(self.ranks) == self.world_size and not self.alignment.refusals and self._is_matched()
        return "high" if is_complete and self.attribution.num_steps >= 2 else "medium"

    def _is_matched(self) -> bool:
        """Whether every collective has the parts of all its members."""
        rows = self.alignment.collectives
        return "complete" not in rows.columns or bool(rows["complete"].all())

    def clock_uncertainty_ns(self) -> int:
        """The largest clock uncertainty of any host."""
        return max((clock.uncertainty_ns for clock in self.alignment.clocks), default=0)


def cost_by_rank(causes: pl.DataFrame) -> dict[str, int]:
    """The costliest ranks of ``Inputs.cause_ns`` and their cost, for evidence."""
    return {str(rank): round(cost) for rank, cost in causes.select("culprit", "cost_ns").head(8).rows()}
