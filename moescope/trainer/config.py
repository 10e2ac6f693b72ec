"""The trainer's whole configuration, and the rules that span its sections.

A preset gives the defaults, a TOML file overrides any field, ``--set section.key=value`` overrides that.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from moescope.trainer.settings.control import ControlConfig
from moescope.trainer.settings.model import ModelConfig, MoEConfig
from moescope.trainer.settings.parallel import ParallelConfig
from moescope.trainer.settings.rules import require
from moescope.trainer.settings.training import CheckpointConfig, DataConfig, ProfileConfig, TrainConfig


@dataclass(frozen=True)
class Config:
    """Everything a run depends on."""

    preset: str = "tiny"
    """The preset this started from."""
    model: ModelConfig = field(default_factory=ModelConfig)
    moe: MoEConfig = field(default_factory=MoEConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    data: DataConfig = field(default_factory=DataConfig)
    profile: ProfileConfig = field(default_factory=ProfileConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    control: ControlConfig = field(default_factory=ControlConfig)

    def check_world(self, world_size: int) -> None:
        """Check what depends on the number of ranks."""
        ep_size = self.ep_size(world_size)
        require(world_size % ep_size == 0, "parallel.ep_size", ep_size, f"must divide the {world_size} ranks")
        require(
            self.moe.num_experts % ep_size == 0,
            "moe.num_experts",
            self.moe.num_experts,
            f"must be a multiple of parallel.ep_size = {ep_size}",
        )
        per_round = world_size * self.train.microbatch_sequences
        require(
            self.train.global_batch_sequences % per_round == 0,
            "train.global_batch_sequences",
            self.train.global_batch_sequences,
            f"must be a multiple of ranks * train.microbatch_sequences = {per_round}",
        )
        if self.profile.enabled:
            first = self.first_profiled_step()
            rule = f"must be one of the {self.train.steps} steps"
            require(first < self.train.steps, "profile.start", first, rule)
        for key in ("router_bias_rank", "slow_rank", "host_stall_rank", "data_stall_rank", "memory_rank"):
            rank = getattr(self.control, key)
            require(rank < world_size, f"control.{key}", rank, f"must be one of the {world_size} ranks")

    def first_profiled_step(self) -> int:
        """The first step of the first trace window."""
        profile = self.profile
        if profile.start >= 0:
            return profile.start
        length = profile.steps + (profile.windows - 1) * profile.every
        return max(0, min(26, self.train.steps - length))

    def ep_size(self, world_size: int) -> int:
        """Ranks per expert group."""
        return self.parallel.ep_size or world_size

    def num_microbatches(self, world_size: int) -> int:
        """Microbatches per rank and step."""
        return self.train.global_batch_sequences // (world_size * self.train.microbatch_sequences)
