"""What is simulated: the cluster, the model, the run, and the faults put into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from moescope.errors import MoescopeError
from moescope.simulate.faults import Fault, TinyExperts

MOST_RANKS, MOST_EXPERTS, MOST_TOKENS = 8_192, 65_536, 1 << 30
MOST_CELLS, MOST_OPERATIONS = 1 << 26, 20_000_000
"""Beyond what a machine simulates in a day: of a table of routed tokens, and of a whole run."""


class ConfigError(MoescopeError):
    """A configuration that cannot be simulated."""

    def __init__(self, message: str, *, hint: str = ""):
        super().__init__(message, hint=hint, code="bad-simulation")


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator; rates are bytes or floating-point operations per nanosecond."""

    name: str = "NVIDIA H100 80GB HBM3"
    num_sms: int = 132
    memory_bytes: int = 85_017_755_648
    peak_flops_per_ns: float = 989_500.0
    """Dense bfloat16."""
    gemm_efficiency: float = 0.72
    """Share of the peak that a tile in flight reaches."""
    memory_bytes_per_ns: float = 2_800.0
    """What a streaming kernel reaches of 3,350."""
    kernel_overhead_ns: float = 2_000.0
    """Ramp up and drain of any kernel."""


@dataclass(frozen=True, slots=True)
class Network:
    """Ports of every rank, in each direction."""

    intra_bytes_per_ns: float = 370.0
    inter_bytes_per_ns: float = 48.0
    local_bytes_per_ns: float = 1_400.0
    intra_latency_ns: float = 9_000.0
    inter_latency_ns: float = 18_000.0
    exit_jitter_ns: float = 600.0
    """Scale of how much later than its last byte a rank leaves (half-normal)."""
    noise: float = 0.005
    """Relative spread of a port's capacity from one collective to the next."""
    resolution: float = 0.002
    """Share of the bottleneck's time within which ends of transfers are merged, in groups of up to 16 ranks; in
    proportion more in larger ones, whose exchanges would have too many moments at which a rate changes."""


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder with dense layers first, then mixture-of-experts layers."""

    num_layers: int = 8
    num_dense_layers: int = 1
    hidden: int = 2048
    num_heads: int = 16
    sequence: int = 4096
    num_experts: int = 64
    top_k: int = 8
    expert_hidden: int = 1024
    dense_hidden: int = 8192
    vocabulary: int = 32_768

    @property
    def moe_layers(self) -> range:
        """Indices of the mixture-of-experts layers, among all decoder layers."""
        return range(self.num_dense_layers, self.num_layers)


@dataclass(frozen=True, slots=True)
class SimConfig:
    """One simulated run."""

    ranks: int = 8
    ranks_per_host: int = 8
    ep_size: int | None = None
    """Ranks that share one set of experts; the default is all ranks, at most 16."""
    steps: int = 4
    first_step: int = 10
    microbatches: int = 2
    tokens: int = 4_096
    """Tokens per rank and microbatch."""
    seed: int = 0
    faults: tuple[Fault, ...] = ()
    kernel_noise: float = 0.005
    """Relative spread of a kernel's time from one launch to the next."""
    router_spread: float = 0.02
    """Spread of the experts' popularity in a well balanced run (sigma of its logarithm)."""
    overlap: bool = False
    """Two microbatches in flight: one computes while the other's rows travel."""
    pipeline: int = 1
    """Pipeline stages, each of consecutive ranks and consecutive layers."""
    hooks: bool = True
    """Write ``moescope::`` ranges and telemetry, as a run with the hooks does."""
    measured_clock: bool = True
    """With the hooks: write the clock offsets that they measure between hosts."""
    name: str = "simulated"
    model: Model = field(default_factory=Model)
    device: Device = field(default_factory=Device)
    network: Network = field(default_factory=Network)

    def __post_init__(self) -> None:
        """Refuse what cannot be built, naming the field and the rule."""
        for key in ("ranks", "ranks_per_host", "steps", "microbatches", "tokens", "pipeline"):
            if getattr(self, key) < 1:
                raise ConfigError(f"{key} must be at least 1, got {getattr(self, key)}")
        self._check_sizes()
        self._check_stages()
        if self.model.num_experts % self.ep:
            raise ConfigError(
                f"ep_size {self.ep} must divide the {self.model.num_experts} experts",
                hint="choose an ep_size or a number of experts that fits",
            )
        if not 0 <= self.model.num_dense_layers < self.model.num_layers:
            raise ConfigError("num_dense_layers must leave at least one mixture-of-experts layer")
        for fault in self.faults:
            fault.check(self.ranks, self.num_hosts)

    def _check_stages(self) -> None:
        """Refuse ranks and layers that cannot be shared out among stages and expert groups."""
        if self.ranks % self.pipeline:
            raise ConfigError(f"pipeline {self.pipeline} must divide ranks {self.ranks}", hint=_divisors(self.ranks))
        if self.stage_ranks % self.ep:
            where = f"the {self.stage_ranks} ranks of a stage" if self.pipeline > 1 else f"ranks {self.ranks}"
            raise ConfigError(f"ep_size {self.ep} must divide {where}", hint=_divisors(self.stage_ranks))
        if self.pipeline > self.model.num_layers:
            raise ConfigError(f"pipeline {self.pipeline} needs at least as many layers, got {self.model.num_layers}")
        if self.pipeline > 1 and self.overlap:
            raise ConfigError("overlap and pipeline cannot be simulated together")

    def _check_sizes(self) -> None:
        """Refuse what would fill the memory or run for days, before anything is allocated."""
        experts = self.num_experts
        operations = self.ranks * self.steps * self.microbatches * self.model.num_layers
        for what, value, most in (
            ("ranks", self.ranks, MOST_RANKS),
            ("ranks_per_host", self.ranks_per_host, 1 << 30),
            ("tokens", self.tokens, MOST_TOKENS),
            ("experts", experts, MOST_EXPERTS),
            ("seed", self.seed, 2**63 - 1),
            ("ranks * experts", self.ranks * experts, MOST_CELLS),
            ("ranks * steps * microbatches * layers", operations, MOST_OPERATIONS),
        ):
            if value > most:
                raise ConfigError(f"{what} must be at most {most:,}, got {value:,}", hint="Choose a smaller run.")

    @property
    def ep(self) -> int:
        """Ranks in one expert-parallel group."""
        return self.ep_size if self.ep_size is not None else min(self.stage_ranks, 16)

    @property
    def stage_ranks(self) -> int:
        """Ranks of one pipeline stage."""
        return self.ranks // self.pipeline

    def stage_of(self, rank: int) -> int:
        """The pipeline stage of a rank: stages are runs of consecutive ranks."""
        return rank // self.stage_ranks

    def layers_of(self, stage: int | None) -> range:
        """The layers of a stage, earlier stages taking one more where they don't divide evenly; None: all."""
        if stage is None:
            return range(self.model.num_layers)
        share, more = divmod(self.model.num_layers, self.pipeline)
        first = stage * share + min(stage, more)
        return range(first, first + share + (stage < more))

    def stage_of_layer(self, layer: int) -> int:
        """The stage that holds a layer."""
        return next(stage for stage in range(self.pipeline) if layer in self.layers_of(stage))

    @property
    def num_experts(self) -> int:
        """Experts in one layer, multiplied where they are made tiny."""
        return self.model.num_experts * self.split_experts(self.faults)

    @staticmethod
    def split_experts(faults: Sequence[Fault]) -> int:
        """Into how many each expert is split under ``faults``."""
        return prod(fault.factor for fault in faults if isinstance(fault, TinyExperts))

    @property
    def num_hosts(self) -> int:
        """Hosts that the ranks fill."""
        return -(-self.ranks // self.ranks_per_host)

    def host_of(self, rank: int) -> int:
        """Which host a rank runs on."""
        return rank // self.ranks_per_host

    def arguments(self) -> list[str]:
        """The options of ``moescope simulate`` that give this run; what no option sets is not among them."""
        plain = _options(SimConfig())
        changed = {name: value for name, value in _options(self).items() if value != plain[name]}
        options = [f"--{name}" if value is True else f"--{name}={value}" for name, value in changed.items()]
        return options + [f"--fault={fault.describe()}" for fault in self.faults]

    def host_name(self, host: int) -> str:
        """Name of a host as the traces record it."""
        return f"node{host}"


def _options(config: SimConfig) -> dict[str, object]:
    """Options of the command line and their values in ``config``."""
    return {
        "ranks": config.ranks,
        "ranks-per-host": config.ranks_per_host,
        "ep": config.ep_size,
        "steps": config.steps,
        "microbatches": config.microbatches,
        "tokens": config.tokens,
        "layers": config.model.num_layers,
        "experts": config.model.num_experts,
        "overlap": config.overlap,
        "pipeline": config.pipeline,
        "seed": config.seed,
        "no-hooks": not config.hooks,
    }


def _divisors(number: int) -> str:
    return f"what divides {number}: {', '.join(str(n) for n in range(1, number + 1) if number % n == 0)}"
