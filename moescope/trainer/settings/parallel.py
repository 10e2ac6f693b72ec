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
    """JSON with the group member that holds each expert, as a list or under expert_placement (as in run.json's
    parallel section); empty: experts in order, as many on each member."""

    def __post_init__(self) -> None:
        require(self.ep_size >= 0, "parallel.ep_size", self.ep_size, "must not be negative")
        one_of("parallel.ep_layout", self.ep_layout, ("contiguous", "strided"))
