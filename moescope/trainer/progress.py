"""Where a run is: learning rate, profiled steps, the status line, and the figures that run.json ends with."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from moescope_hooks import Schedule
from torch import Tensor

from moescope.trainer.config import Config
from moescope.trainer.flops import model_cost, peak_flops
from moescope.trainer.mesh import Mesh

Say = Callable[[str], None]


def learning_rate(config: Config, step: int) -> float:
    """Linear warm-up, then a cosine down to the given share of the peak at the last step."""
    train = config.train
    if step < train.warmup_steps:
        return train.learning_rate * (step + 1) / train.warmup_steps
    progress = (step - train.warmup_steps) / max(1, train.steps - 1 - train.warmup_steps)
    low = train.min_learning_rate_ratio
    return train.learning_rate * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))


def schedule_of(config: Config) -> Schedule | None:
    """The steps to trace, None without profiling."""
    profile = config.profile
    if not profile.enabled:
        return None
    return Schedule(
        config.first_profiled_step(), profile.steps, profile.windows, profile.every if profile.windows > 1 else None
    )


class Stopwatch:
    """How long this run has trained, the starts before this one included."""

    def __init__(self) -> None:
        self._before = 0.0
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Until now."""
        return self._before + time.monotonic() - self._started

    def add(self, seconds: float) -> None:
        """Count what was trained earlier."""
        self._before += seconds


class Status:
    """The status line, and the figures that run.json ends with."""

    def __init__(self, config: Config, mesh: Mesh, say: Say) -> None:
        self.config = config
        self.mesh = mesh
        self.say = say
        self.cost = model_cost(config)
        self.peak = peak_flops(config, mesh.device)
        self.tokens_per_step = config.train.global_batch_sequences * config.train.sequence_length
        self.validation: dict[str, float] = {}
        self._step_seconds: list[float] = []
        self._last: dict[str, float | None] = {}
        self._schedule = schedule_of(config)
        self.begin()

    def _profiled(self, step: int) -> bool:
        return self._schedule is not None and self._schedule.window_of(step) is not None

    def begin(self) -> None:
        """A step starts now."""
        self._started = time.perf_counter()

    def step(self, step: int, losses: Tensor, norm: Tensor, busiest_rank: Callable[[], float | None]) -> None:
        """A step ended; every ``log_every`` steps, show it (the one place that reads the loss back).

        ``busiest_rank``: by how much the rank that received most exceeds the mean, beside the balancing objective.
        """
        train = self.config.train
        logs = step % train.log_every == 0 or step == train.steps - 1
        loss, balance = losses.tolist() if logs else (math.nan, math.nan)
        seconds = time.perf_counter() - self._started
        self._step_seconds.append(seconds)
        if not logs:
            return
        received = busiest_rank()
        self._last = {"loss": loss, "balance": balance, "maxvio_rank_received": received}
        busiest = "" if received is None else f"  busiest rank {received:+.0%}"
        line = f"step {step:>4}/{train.steps}  loss {loss:.4f}  balance {balance:.3f}{busiest}  norm {float(norm):.3f}"
        line += f"  lr {learning_rate(self.config, step):.2e}  {seconds * 1e3:.0f} ms"
        line += f"  {self.tokens_per_step / seconds:,.0f} tokens/s"
        mfu = self.mfu(seconds)
        self.say(
            line + (f"  MFU {mfu:.1%}" if mfu is not None else "") + ("  [profiled]" if self._profiled(step) else "")
        )

    def mfu(self, seconds: float) -> float | None:
        """Model FLOPs of a step over what the devices could do in ``seconds``; None where the peak is unknown."""
        if self.peak is None:
            return None
        return self.cost.flops_per_token * self.tokens_per_step / (seconds * self.peak * self.mesh.world.size)

    def validated(self, step: int, losses: dict[str, float]) -> float:
        """Take and show validation losses per domain; returns their mean."""
        self.validation = losses
        per_domain = "  ".join(f"{name} {loss:.4f}" for name, loss in self.validation.items())
        self.say(f"step {step:>4}  validation loss  {per_domain}")
        return sum(losses.values()) / len(losses)

    def result(self) -> dict[str, Any]:
        """The figures of a finished run; speed is that of the median step after warm-up, unprofiled where possible."""
        plain = [s for i, s in enumerate(self._step_seconds) if i > 0 and not self._profiled(i)]
        ordered = sorted(plain or self._step_seconds)
        median = ordered[len(ordered) // 2]
        return {
            "steps": self.config.train.steps,
            "tokens": self.tokens_per_step * self.config.train.steps,
            **self._last,
            "validation_loss": sum(self.validation.values()) / max(1, len(self.validation)),
            "validation_loss_by_domain": self.validation,
            "median_step_seconds": median,
            "tokens_per_s": self.tokens_per_step / median,
            "mfu": self.mfu(median),
            "flops_per_token": self.cost.flops_per_token,
        }
