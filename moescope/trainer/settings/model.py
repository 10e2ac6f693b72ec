"""The model: its decoder, and its experts with their router."""

from __future__ import annotations

from dataclasses import dataclass

from moescope.trainer.settings.rules import one_of, require


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
    dense_baseline: str = "none"
    """Dense blocks in place of the mixtures of experts: none, or as many parameters per block as one token passes
    (active) or as all experts and their router hold (total)."""
    upcycle_from: str = ""
    """Run directory, or checkpoint, of a dense model to start from: every expert becomes a copy of the dense block, or
    one of its equal slices in turn."""

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
        one_of("model.dense_baseline", self.dense_baseline, ("none", "active", "total"))
        require(
            not self.upcycle_from or self.dense_baseline == "none",
            "model.upcycle_from",
            self.upcycle_from,
            "needs experts: model.dense_baseline = none",
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
