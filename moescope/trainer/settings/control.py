"""What is skewed or slow on purpose."""

from __future__ import annotations

from dataclasses import dataclass

from moescope.trainer.settings.rules import one_of, require


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
