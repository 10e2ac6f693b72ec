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

    def __post_init__(self) -> None:
        if self.train.two_batch_overlap:
            self._check_halves()
        recompute, tensor_parallel = self.train.recompute, self.parallel.tp_size > 1
        require(
            not (self.train.offload_activations and recompute == "full"),
            "train.offload_activations",
            True,
            "needs train.recompute = none or experts: recomputed layers keep nothing that could be offloaded",
        )
        require(
            not (self.train.shard_optimizer and tensor_parallel),
            "train.shard_optimizer",
            True,
            "needs parallel.tp_size = 1: attention weights are shared out among those ranks already",
        )
        require(
            self.control.slow_rank < 0 or not (tensor_parallel or self.train.shard_optimizer),
            "control.slow_rank",
            self.control.slow_rank,
            "needs parallel.tp_size = 1 and no train.shard_optimizer: a rank cannot repeat alone what several share",
        )
        shared = self.moe.num_shared_experts
        rule = "must be 0 with model.upcycle_from: the dense model has nothing to make shared experts of"
        require(shared == 0 or not self.model.upcycle_from, "moe.num_shared_experts", shared, rule)

    def _check_halves(self) -> None:
        """What must hold so that two halves of a microbatch do what the whole one does."""
        train, key = self.train, "train.two_batch_overlap"
        size = train.microbatch_sequences
        require(size % 2 == 0, "train.microbatch_sequences", size, f"must be even with {key}")
        require(train.recompute != "full", key, True, "needs train.recompute = none or experts")
        require(
            self.moe.capacity_factor == 0,
            key,
            True,
            "needs moe.capacity_factor = 0: a half would drop other rows than a whole microbatch",
        )
        require(
            self.moe.noise == 0 and self.control.routing == "learned",
            key,
            True,
            "needs moe.noise = 0 and control.routing = learned: halves would draw other numbers than the whole",
        )

    def check_world(self, world_size: int) -> None:
        """Check what depends on the number of ranks."""
        ep_size, tp_size = self.ep_size(world_size), self.parallel.tp_size
        require(world_size % ep_size == 0, "parallel.ep_size", ep_size, f"must divide the {world_size} ranks")
        require(
            self.moe.num_experts % ep_size == 0,
            "moe.num_experts",
            self.moe.num_experts,
            f"must be a multiple of parallel.ep_size = {ep_size}",
        )
        require(
            world_size % tp_size == 0 and self.model.num_heads % tp_size == 0,
            "parallel.tp_size",
            tp_size,
            f"must divide the {world_size} ranks and model.num_heads = {self.model.num_heads}",
        )
        rule = "needs more than one rank to share the optimizer out among"
        require(not self.train.shard_optimizer or world_size > 1, "train.shard_optimizer", True, rule)
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
