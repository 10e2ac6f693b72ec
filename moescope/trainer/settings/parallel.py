"""How the model is spread over the ranks."""

from __future__ import annotations

from dataclasses import dataclass

from moescope.trainer.settings.rules import one_of, require


@dataclass(frozen=True)
class ParallelConfig:
    """How experts are spread over the ranks."""

    ep_size: int = 0
    """Ranks that share one set of experts; 0 means all ranks."""
    ep_layout: str = "contiguous"
    """Which ranks form an expert group: contiguous (0 1 | 2 3, within hosts) or strided (0 2 | 1 3, across hosts)."""
    placement_file: str = ""
    """JSON with the group member that holds each expert: one list, or one by layer number, bare or under
    expert_placement (as in run.json's parallel section); empty: experts in order, as many on each member."""
    placement_from: str = ""
    """Run directory whose measured counts place the experts, layer by layer: the busiest expert first, each to the
    member that has least to do."""
    tp_size: int = 1
    """Consecutive ranks that share the attention heads, whatever the expert groups are; 1: every rank has them all."""

    def __post_init__(self) -> None:
        require(self.ep_size >= 0, "parallel.ep_size", self.ep_size, "must not be negative")
        one_of("parallel.ep_layout", self.ep_layout, ("contiguous", "strided"))
        require(self.tp_size >= 1, "parallel.tp_size", self.tp_size, "must be at least 1")
        require(
            not (self.placement_file and self.placement_from),
            "parallel.placement_from",
            self.placement_from,
            "must be empty with parallel.placement_file",
        )
