"""The training loop of one rank, to be read from top to bottom.

moescope train --ranks 4 --preset tiny --profile --out runs/first
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from moescope_hooks import Observation, Schedule, observe
from moescope_hooks.ranges import phase_range
from moescope_hooks.runinfo import write_run
from moescope_hooks.writer import write_atomically
from torch import Tensor

from moescope.trainer.comm import sum_over
from moescope.trainer.config import Config
from moescope.trainer.data import Batches, Corpus, load_corpus, validation_sequences
from moescope.trainer.flops import model_cost, peak_flops
from moescope.trainer.grads import Gradients, optimizer_groups
from moescope.trainer.mesh import Mesh
from moescope.trainer.model import Transformer, contiguous_placement
from moescope.trainer.presets import to_toml
from moescope.trainer.runfile import describe_ranks, describe_training

Say = Callable[[str], None]


def learning_rate(config: Config, step: int) -> float:
    """Linear warm-up, then a cosine down to the given share of the peak at the last step."""
    train = config.train
    if step < train.warmup_steps:
        return train.learning_rate * (step + 1) / train.warmup_steps
    progress = (step - train.warmup_steps) / max(1, train.steps - 1 - train.warmup_steps)
    low = train.min_learning_rate_ratio
    return train.learning_rate * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))


class Trainer:
    """Model, optimizer and data of one rank."""

    def __init__(self, config: Config, mesh: Mesh, corpus: Corpus | None = None) -> None:
        config.check_world(mesh.world.size)
        self.config = config
        self.mesh = mesh
        self.corpus = corpus or load_corpus(config.data, config.train.sequence_length)
        self.placement = contiguous_placement(config.moe.num_experts, mesh.expert.size)
        self.model = Transformer(config, mesh, self.placement).to(mesh.device)
        train = config.train
        self.routers = self.model.routers()
        self.gradients = Gradients(self.model, mesh, train.bucket_bytes)
        self.optimizer = torch.optim.AdamW(
            optimizer_groups(self.model, train),
            lr=train.learning_rate,
            betas=(train.beta1, train.beta2),
            fused=True,
        )
        self.batches = Batches(self.corpus, train.sequence_length, train.global_batch_sequences, train.seed)
        self.num_microbatches = config.num_microbatches(mesh.world.size)

    def train_step(self, step: int, obs: Observation | None) -> tuple[Tensor, Tensor]:
        """One optimizer step; returns [cross-entropy, auxiliary loss] over the global batch, and the gradient norm."""
        train, world = self.config.train, self.mesh.world
        rate = learning_rate(self.config, step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["rate_ratio"]
        sums = torch.zeros(2, device=self.mesh.device)
        for router in self.routers:
            router.global_share.begin_step()
        self.model.faults.stall_data()
        for tokens_BS, targets_BS in self.batches.microbatches(
            step, self.mesh.rank, world.size, train.microbatch_sequences, self.mesh.device
        ):
            if obs is not None:
                obs.microbatch()
            with self._autocast():
                loss = self.model(tokens_BS, targets_BS)
            ((loss.cross_entropy + loss.penalty) / self.num_microbatches).backward()
            sums += torch.stack([loss.cross_entropy.detach(), loss.balance])
        self.gradients.reduce()
        self.update_biases()
        with phase_range("optimizer"):
            norm = self.gradients.clip(train.clip_norm)
            self.optimizer.step()
            self.gradients.zero()
        return sum_over(sums, world) / (world.size * self.num_microbatches), norm

    @torch.no_grad()
    def update_biases(self) -> None:
        """Let the balancing biases follow this step's load over all ranks."""
        biases = [router.expert_bias for router in self.routers if router.expert_bias is not None]
        if biases:
            loads = sum_over(torch.stack([bias.load_E for bias in biases]), self.mesh.world)
            for bias, load_E in zip(biases, loads, strict=True):
                bias.load_E.copy_(load_E)
                bias.update()

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Mean validation loss per domain, over the whole world; a collective call."""
        train, world = self.config.train, self.mesh.world
        self.model.eval()
        losses = {}
        count = math.ceil(train.eval_sequences / world.size) * world.size
        for domain in self.corpus.domains:
            rows = validation_sequences(domain, train.sequence_length, count)[self.mesh.rank :: world.size]
            rows = rows.to(self.mesh.device)
            total = torch.zeros((), device=self.mesh.device)
            for part in torch.split(rows, train.microbatch_sequences):
                with self._autocast():
                    total += self.model(part[:, :-1], part[:, 1:]).cross_entropy * part.shape[0]
            losses[domain.name] = float(sum_over(total, world)) / count
        self.model.train()
        return losses

    def _autocast(self) -> Any:
        if self.config.train.dtype == "float32":
            return nullcontext()
        return torch.autocast(self.mesh.device.type, dtype=torch.bfloat16)


def train(config: Config, mesh: Mesh, out: Path, say: Say, command: Sequence[str] = ()) -> dict[str, Any]:
    """Train, observe, and leave a run directory behind; returns run.json.

    ``say`` shows a line to the user; ``command`` is what the user ran, for run.json.
    """
    trainer = Trainer(config, mesh)
    run = describe_ranks(out, mesh, command)
    run |= describe_training(config, mesh, trainer.placement, trainer.corpus)
    if mesh.rank == 0:
        write_run(out, run)
        write_atomically(out / "config.toml", lambda path: path.write_text(to_toml(config), encoding="utf-8"))
    status = Status(config, mesh, say)
    with observe(trainer.model, out=out, profile=schedule_of(config), optimizer=trainer.optimizer) as obs:
        for step in range(config.train.steps):
            losses, norm = trainer.train_step(step, obs)
            obs.pause()
            status.step(step, losses, norm)
            validation = None
            if _validates(config, step):
                status.validation = trainer.validate()
                validation = sum(status.validation.values()) / len(status.validation)
                status.show_validation(step)
            obs.step(
                loss=losses[0],
                tokens=status.tokens_per_step // mesh.world.size,
                validation_loss=validation,
                gradient_norm=norm,
            )
            status.begin()
    run["result"] |= status.result()
    if mesh.rank == 0:
        write_run(out, run)
    return run


def schedule_of(config: Config) -> Schedule | None:
    """The steps to trace, None without profiling."""
    profile = config.profile
    if not profile.enabled:
        return None
    return Schedule(
        config.first_profiled_step(), profile.steps, profile.windows, profile.every if profile.windows > 1 else None
    )


def _validates(config: Config, step: int) -> bool:
    every = config.train.eval_every
    return step == config.train.steps - 1 or (every > 0 and (step + 1) % every == 0)


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
        self._last_loss = math.nan
        self._schedule = schedule_of(config)
        self.begin()

    def _profiled(self, step: int) -> bool:
        return self._schedule is not None and self._schedule.window_of(step) is not None

    def begin(self) -> None:
        """A step starts now."""
        self._started = time.perf_counter()

    def step(self, step: int, losses: Tensor, norm: Tensor) -> None:
        """A step ended; every ``log_every`` steps, show it (the one place that reads the loss back)."""
        train = self.config.train
        logs = step % train.log_every == 0 or step == train.steps - 1
        loss, balance = losses.tolist() if logs else (math.nan, math.nan)
        seconds = time.perf_counter() - self._started
        self._step_seconds.append(seconds)
        if not logs:
            return
        self._last_loss = loss
        line = f"step {step:>4}/{train.steps}  loss {loss:.4f}  balance {balance:.3f}  norm {float(norm):.3f}"
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

    def show_validation(self, step: int) -> None:
        """Show the latest validation losses."""
        per_domain = "  ".join(f"{name} {loss:.4f}" for name, loss in self.validation.items())
        self.say(f"step {step:>4}  validation loss  {per_domain}")

    def result(self) -> dict[str, Any]:
        """The figures of a finished run; speed is that of the median step after warm-up, unprofiled where possible."""
        plain = [s for i, s in enumerate(self._step_seconds) if i > 0 and not self._profiled(i)]
        ordered = sorted(plain or self._step_seconds)
        median = ordered[len(ordered) // 2]
        return {
            "steps": len(self._step_seconds),
            "tokens": self.tokens_per_step * len(self._step_seconds),
            "loss": self._last_loss,
            "validation_loss": sum(self.validation.values()) / max(1, len(self.validation)),
            "validation_loss_by_domain": self.validation,
            "median_step_seconds": median,
            "tokens_per_s": self.tokens_per_step / median,
            "mfu": self.mfu(median),
            "flops_per_token": self.cost.flops_per_token,
        }
