"""The trainer's configuration: one dataclass per section, each field documented, each rule checked with its key path.

A preset gives the defaults, a TOML file overrides any field, ``--set section.key=value`` overrides that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from moescope.errors import MoescopeError


class ConfigError(MoescopeError):
    """A setting breaks a rule; the message names the key path, its value and the rule."""

    def __init__(self, key: str, value: Any, rule: str):
        super().__init__(f"{key} = {value!r}: {rule}", code="config-invalid", hint=f"set it with --set {key}=VALUE")


def require(holds: bool, key: str, value: Any, rule: str) -> None:
    """Raise a ConfigError unless ``holds``."""
    if not holds:
        raise ConfigError(key, value, rule)


def one_of(key: str, value: str, choices: Sequence[str]) -> None:
    """Raise a ConfigError unless ``value`` is one of ``choices``."""
    require(value in choices, key, value, f"must be one of {', '.join(choices)}")


@dataclass(frozen=True)
class ModelConfig:
    """The decoder outside of its experts."""

    vocab_size: int = 256
    """Tokens are bytes."""
    num_layers: int = 3
    """Decoder layers, dense ones included."""
    num_dense_layers: int = 1
    """How many layers at the bottom are dense."""
    dim: int = 128
    """Width of the residual stream."""
    num_heads: int = 4
    """Attention heads; the head dimension is dim / num_heads."""
    dense_hidden_dim: int = 384
    """Inner width of a dense layer's SwiGLU."""
    rope_theta: float = 10000.0
    """Base of the rotary position frequencies."""
    norm_eps: float = 1e-6
    """Added to the mean square in RMSNorm."""
    init_std: float = 0.02
    """Standard deviation of the initial weights; those that write to the residual stream are scaled by 1/sqrt(2 L)."""

    def __post_init__(self) -> None:
        for key in ("vocab_size", "num_layers", "dim", "num_heads", "dense_hidden_dim"):
            require(getattr(self, key) >= 1, f"model.{key}", getattr(self, key), "must be at least 1")
        require(self.vocab_size >= 256, "model.vocab_size", self.vocab_size, "must hold the 256 byte values")
        require(
            0 <= self.num_dense_layers <= self.num_layers,
            "model.num_dense_layers",
            self.num_dense_layers,
            f"must lie between 0 and model.num_layers = {self.num_layers}",
        )
        head_dim, rest = divmod(self.dim, self.num_heads)
        require(
            rest == 0 and head_dim % 2 == 0,
            "model.dim",
            self.dim,
            f"must be a multiple of 2 * model.num_heads = {2 * self.num_heads}, so that rotary pairs fit in a head",
        )


@dataclass(frozen=True)
class MoEConfig:
    """Experts and router of every MoE layer."""

    num_experts: int = 16
    """Routed experts per layer, over all ranks."""
    top_k: int = 2
    """Experts per token."""
    expert_hidden_dim: int = 256
    """Inner width of an expert's SwiGLU."""
    num_shared_experts: int = 0
    """Experts that every token passes, beside the routed ones."""
    renormalize: bool = True
    """Whether the weights of a token's K experts are scaled to sum to 1."""
    score: str = "softmax"
    """What weights are made of: softmax, sigmoid or sqrt_softplus of the logits."""
    router_dtype: str = "float32"
    """Type the router computes in: float32 or bfloat16."""
    num_groups: int = 1
    """Groups of consecutive experts for group-limited routing; 1 does not limit."""
    top_groups: int = 1
    """Groups a token may choose from, with num_groups > 1."""
    noise: float = 0.0
    """Standard deviation of normal noise on the logits for the choice of experts, in training."""
    balance: str = "aux_microbatch"
    """How the load is balanced: none; the Switch auxiliary loss over this rank's microbatch (aux_microbatch), over
    each sequence (aux_sequence) or over the global batch (aux_global); or a bias that follows the load (bias)."""
    balance_coefficient: float = 0.1
    """Weight of the auxiliary loss."""
    bias_update_rate: float = 0.002
    """Step of the bias, per optimizer step, with balance = bias."""
    z_loss_coefficient: float = 0.0
    """Weight of the squared log-sum-exp of the logits."""
    capacity_factor: float = 0.0
    """Rows a rank may send to an expert, as a multiple of the mean; what exceeds it is dropped. 0 drops nothing."""
    capacity_drop: str = "position"
    """What stays when capacity is short: the first tokens (position) or those of highest weight (score)."""
    capacity_pad: bool = False
    """Fill every expert up to its capacity with zeros, so that shapes do not depend on the routing."""
    expert_compute: str = "loop"
    """Experts one after the other (loop), or in grouped calls of torch.nn.functional.grouped_mm (grouped)."""

    def __post_init__(self) -> None:
        require(self.num_experts >= 2, "moe.num_experts", self.num_experts, "must be at least 2")
        require(
            1 <= self.top_k <= self.num_experts,
            "moe.top_k",
            self.top_k,
            f"must lie between 1 and moe.num_experts = {self.num_experts}",
        )
        require(self.expert_hidden_dim >= 1, "moe.expert_hidden_dim", self.expert_hidden_dim, "must be at least 1")
        require(self.num_shared_experts >= 0, "moe.num_shared_experts", self.num_shared_experts, "must not be negative")
        one_of("moe.balance", self.balance, ("none", "aux_microbatch", "aux_sequence", "aux_global", "bias"))
        one_of("moe.score", self.score, ("softmax", "sigmoid", "sqrt_softplus"))
        one_of("moe.router_dtype", self.router_dtype, ("float32", "bfloat16"))
        one_of("moe.capacity_drop", self.capacity_drop, ("position", "score"))
        one_of("moe.expert_compute", self.expert_compute, ("loop", "grouped"))
        for key in ("noise", "balance_coefficient", "bias_update_rate", "z_loss_coefficient", "capacity_factor"):
            require(getattr(self, key) >= 0, f"moe.{key}", getattr(self, key), "must not be negative")
        require(
            not self.capacity_pad or self.capacity_factor > 0,
            "moe.capacity_pad",
            self.capacity_pad,
            "needs moe.capacity_factor > 0",
        )
        self._check_groups()

    def _check_groups(self) -> None:
        require(
            self.num_groups >= 1 and self.num_experts % self.num_groups == 0,
            "moe.num_groups",
            self.num_groups,
            f"must divide moe.num_experts = {self.num_experts}",
        )
        reachable = self.top_groups * (self.num_experts // self.num_groups)
        require(
            1 <= self.top_groups <= self.num_groups and reachable >= self.top_k,
            "moe.top_groups",
            self.top_groups,
            f"must lie between 1 and moe.num_groups = {self.num_groups} and hold moe.top_k = {self.top_k} experts",
        )


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


@dataclass(frozen=True)
class TrainConfig:
    """Batches, optimizer and schedule."""

    steps: int = 30
    """Optimizer steps."""
    seed: int = 0
    """Seed of the weights and of the order of the data."""
    sequence_length: int = 128
    """Tokens per sequence."""
    microbatch_sequences: int = 4
    """Sequences per rank and microbatch."""
    global_batch_sequences: int = 32
    """Sequences per step over all ranks; a multiple of ranks * train.microbatch_sequences."""
    learning_rate: float = 2e-3
    """Peak of the schedule."""
    router_learning_rate_ratio: float = 0.1
    """The routers' rate as a share of the others': a slower router moves fewer tokens between experts at once."""
    min_learning_rate_ratio: float = 0.1
    """What remains of the peak at the last step."""
    warmup_steps: int = 5
    """Steps of linear warm-up before the cosine."""
    weight_decay: float = 0.1
    """Decoupled decay of matrices; vectors are not decayed."""
    beta1: float = 0.9
    """AdamW's first decay rate."""
    beta2: float = 0.95
    """AdamW's second decay rate."""
    clip_norm: float = 1.0
    """Largest norm of the whole model's gradient; 0 does not clip."""
    dtype: str = "float32"
    """Compute type: float32, or bfloat16 through autocast with float32 weights."""
    recompute: str = "none"
    """Activations computed again in the backward pass instead of kept: none, experts (inside them), full (layers)."""
    bucket_bytes: int = 8 * 2**20
    """Size of the buckets in which gradients are reduced."""
    eval_every: int = 0
    """Steps between validations; 0 validates at the end only."""
    eval_sequences: int = 16
    """Validation sequences per domain."""
    log_every: int = 1
    """Steps between status lines."""
    peak_tflops: float = 0.0
    """Dense peak of one device in the compute type, for MFU; 0 looks it up and leaves MFU out if unknown."""

    def __post_init__(self) -> None:
        positive = (
            "steps",
            "sequence_length",
            "microbatch_sequences",
            "global_batch_sequences",
            "bucket_bytes",
            "eval_sequences",
            "log_every",
        )
        for key in positive:
            require(getattr(self, key) >= 1, f"train.{key}", getattr(self, key), "must be at least 1")
        for key in ("learning_rate", "router_learning_rate_ratio"):
            require(getattr(self, key) > 0, f"train.{key}", getattr(self, key), "must be positive")
        for key in ("warmup_steps", "weight_decay", "clip_norm", "eval_every", "peak_tflops"):
            require(getattr(self, key) >= 0, f"train.{key}", getattr(self, key), "must not be negative")
        for key in ("beta1", "beta2"):
            require(0 <= getattr(self, key) < 1, f"train.{key}", getattr(self, key), "must lie in [0, 1)")
        ratio = self.min_learning_rate_ratio
        require(0 <= ratio <= 1, "train.min_learning_rate_ratio", ratio, "must lie in [0, 1]")
        one_of("train.recompute", self.recompute, ("none", "experts", "full"))
        one_of("train.dtype", self.dtype, ("float32", "bfloat16"))


@dataclass(frozen=True)
class DataConfig:
    """Where the text comes from."""

    files: tuple[str, ...] = ()
    """Globs of text files, one domain per glob; empty: what every Python carries (code, prose, characters)."""
    max_domain_bytes: int = 4 * 2**20
    """At most this much text is read per domain."""
    validation_fraction: float = 0.05
    """Share of each domain, at its end, that is kept for validation."""

    def __post_init__(self) -> None:
        require(self.max_domain_bytes >= 1, "data.max_domain_bytes", self.max_domain_bytes, "must be at least 1")
        fraction = self.validation_fraction
        require(0 < fraction < 1, "data.validation_fraction", fraction, "must lie strictly between 0 and 1")


@dataclass(frozen=True)
class ProfileConfig:
    """Which steps leave a trace."""

    enabled: bool = False
    """Whether traces are recorded; telemetry always is."""
    start: int = -1
    """First step of the first window, steps counting from 0; -1: step 26, or earlier if the run would end too soon."""
    steps: int = 2
    """Steps in a window."""
    windows: int = 1
    """Number of windows."""
    every: int = 10
    """Distance between the starts of two windows."""

    def __post_init__(self) -> None:
        require(self.start >= -1, "profile.start", self.start, "must be a step, or -1")
        for key in ("steps", "windows"):
            require(getattr(self, key) >= 1, f"profile.{key}", getattr(self, key), "must be at least 1")
        if self.windows > 1:
            require(self.every > self.steps, "profile.every", self.every, f"must exceed profile.steps = {self.steps}")


@dataclass(frozen=True)
class CheckpointConfig:
    """When to save, so that an ended run can be resumed."""

    every: int = 0
    """Steps between checkpoints, and one after the last step; 0 saves none."""
    keep: int = 2
    """How many to keep, the newest ones."""

    def __post_init__(self) -> None:
        require(self.every >= 0, "checkpoint.every", self.every, "must not be negative")
        require(self.keep >= 1, "checkpoint.keep", self.keep, "must be at least 1")


@dataclass(frozen=True)
class ControlConfig:
    """Diagnostic controls: skewed or slow on purpose. Such a run does not validate quality; run.json lists them."""

    router_bias: float = 0.0
    """Added, for the choice of experts alone, to the logits of the experts that router_bias_rank holds."""
    router_bias_rank: int = 0
    """Whose experts router_bias favours."""
    routing: str = "learned"
    """learned; uniform (experts in turn, whatever the router says); zipf (drawn at random, expert 0 the hottest)."""
    zipf_exponent: float = 1.0
    """With routing = zipf, expert e is drawn with probability proportional to 1 / (e + 1)^exponent."""
    slow_rank: int = -1
    """Fault: the rank that computes slowly; -1 for none."""
    slow_factor: float = 2.0
    """How many times as long its attention and experts take."""
    host_stall_rank: int = -1
    """Fault: the rank whose training thread is held up once per microbatch; -1 for none."""
    host_stall_ms: float = 20.0
    """For how long."""
    data_stall_rank: int = -1
    """Fault: the rank whose batch comes late in every step; -1 for none."""
    data_stall_ms: float = 50.0
    """How late."""
    memory_rank: int = -1
    """Fault: the rank on which memory is taken away; -1 for none."""
    memory_mib: int = 256
    """How much."""

    def __post_init__(self) -> None:
        require(self.router_bias_rank >= 0, "control.router_bias_rank", self.router_bias_rank, "must not be negative")
        one_of("control.routing", self.routing, ("learned", "uniform", "zipf"))
        require(self.slow_factor >= 1, "control.slow_factor", self.slow_factor, "must be at least 1")
        for key in ("zipf_exponent", "host_stall_ms", "data_stall_ms", "memory_mib"):
            require(getattr(self, key) >= 0, f"control.{key}", getattr(self, key), "must not be negative")

    def active(self) -> list[str]:
        """What run.json lists: one line per control or fault that is on."""
        lines = []
        if self.router_bias:
            lines.append(f"router-bias: {self.router_bias:+g} on the experts of rank {self.router_bias_rank}")
        if self.routing == "uniform":
            lines.append("forced-uniform-routing: every expert gets as many assignments as any other")
        if self.routing == "zipf":
            lines.append(f"forced-zipf-routing: expert e drawn with probability ~ 1/(e + 1)^{self.zipf_exponent:g}")
        faults = (
            (self.slow_rank, f"slow-rank: rank {self.slow_rank} computes {self.slow_factor:g} times as long"),
            (
                self.host_stall_rank,
                f"host-stall: {self.host_stall_ms:g} ms per microbatch on rank {self.host_stall_rank}",
            ),
            (self.data_stall_rank, f"data-stall: {self.data_stall_ms:g} ms per step on rank {self.data_stall_rank}"),
            (self.memory_rank, f"memory-pressure: {self.memory_mib} MiB on rank {self.memory_rank}"),
        )
        lines.extend(line for rank, line in faults if rank >= 0)
        return lines


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
