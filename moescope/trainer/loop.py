"""The training loop of one rank, to be read from top to bottom.

moescope train --ranks 4 --preset tiny --profile --out runs/first
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from moescope_hooks import Observation, observe
from moescope_hooks.ranges import phase_range
from moescope_hooks.runinfo import write_run
from moescope_hooks.writer import write_atomically
from torch import Tensor

from moescope.trainer import checkpoint
from moescope.trainer.attention import share_heads
from moescope.trainer.comm import sum_over
from moescope.trainer.config import Config
from moescope.trainer.data import Batches, Corpus, load_corpus, validation_sequences
from moescope.trainer.grads import Gradients, optimizer_groups
from moescope.trainer.mesh import Mesh
from moescope.trainer.model import Transformer
from moescope.trainer.offload import Offload
from moescope.trainer.placement import placements_of
from moescope.trainer.presets import to_toml
from moescope.trainer.progress import Say, Status, Stopwatch, learning_rate, schedule_of
from moescope.trainer.received import busiest_rank
from moescope.trainer.runfile import describe_ranks, describe_training, read_run, seconds_after
from moescope.trainer.settings.rules import ConfigError
from moescope.trainer.sharded import ShardedGradients, shard
from moescope.trainer.upcycle import upcycle


class Trainer:
    """Model, optimizer and data of one rank."""

    def __init__(self, config: Config, mesh: Mesh, corpus: Corpus | None = None, *, to_resume: bool = False) -> None:
        """``to_resume``: weights will come from a checkpoint, and from nowhere else."""
        config.check_world(mesh.world.size)
        self.config = config
        self.mesh = mesh
        self.corpus = corpus or load_corpus(config.data, config.train.sequence_length)
        self.placements = placements_of(config, mesh.expert.size)
        self.model = Transformer(config, mesh, self.placements).to(mesh.device)
        train = config.train
        if config.model.upcycle_from and not to_resume:
            upcycle(self.model, config)
        share_heads(self.model, mesh.tensor, mesh.device)
        if train.shard_optimizer:
            shard(self.model, mesh)
        self.routers = self.model.routers()
        self.gradients: Gradients | ShardedGradients = (ShardedGradients if train.shard_optimizer else Gradients)(
            self.model, mesh, train.bucket_bytes
        )
        self.offload = Offload(mesh.device) if train.offload_activations else nullcontext()
        self.optimizer = torch.optim.AdamW(
            optimizer_groups(self.model, train),
            lr=train.learning_rate,
            betas=(train.beta1, train.beta2),
            fused=True,
        )
        self.batches = Batches(self.corpus, train.sequence_length, train.global_batch_sequences, train.seed)
        self.num_microbatches = config.num_microbatches(mesh.world.size)
        self.loads_GLE: Tensor
        """Of the last step, the assignments that each expert group's ranks made, by layer and expert."""
        self.stopwatch = Stopwatch()

    def train_step(self, step: int, obs: Observation | None) -> tuple[Tensor, Tensor]:
        """One optimizer step; returns [cross-entropy, auxiliary loss] over the global batch, and the gradient norm."""
        train, world = self.config.train, self.mesh.world
        rate = learning_rate(self.config, step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["rate_ratio"]
        sums = torch.zeros(2, device=self.mesh.device)
        for router in self.routers:
            router.begin_step()
        self.model.faults.stall_data()
        microbatches = self.batches.microbatches(
            step, self.mesh.rank, world.size, train.microbatch_sequences, self.mesh.device
        )
        for index, (tokens_BS, targets_BS) in enumerate(microbatches):
            if obs is not None:
                obs.microbatch()
            with self._autocast(), self.offload:
                loss = self.model(tokens_BS, targets_BS)
            self.gradients.before_backward(last=index == self.num_microbatches - 1)
            ((loss.cross_entropy + loss.penalty) / self.num_microbatches).backward()
            sums += torch.stack([loss.cross_entropy.detach(), loss.balance])
        self.gradients.reduce()
        losses = self._total(sums)
        with phase_range("optimizer"):
            norm = self.gradients.clip(train.clip_norm)
            self.optimizer.step()
            self.gradients.zero()
        return losses, norm

    @torch.no_grad()
    def _total(self, sums: Tensor) -> Tensor:
        """Sum losses and loads over all ranks at once, and let the balancing biases follow; returns mean losses."""
        world = self.mesh.world
        self.loads_GLE = torch.zeros(
            len(self.mesh.ep_groups), len(self.routers), self.config.moe.num_experts, device=self.mesh.device
        ).double()  # exact for counts up to 2^53
        if self.routers:
            self.loads_GLE[self.mesh.ep_index] = torch.stack([router.load_E for router in self.routers]).double()
        totals = sum_over(torch.cat([sums.double(), self.loads_GLE.flatten()]), world)
        self.loads_GLE = totals[len(sums) :].view_as(self.loads_GLE)
        for router, load_E in zip(self.routers, self.loads_GLE.sum(dim=0), strict=True):
            if router.expert_bias is not None:
                router.expert_bias.update(load_E)
        return totals[: len(sums)].float() / (world.size * self.num_microbatches)

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


@dataclass(frozen=True)
class Job:
    """What to train, and where to leave it."""

    config: Config
    out: Path
    """The run directory."""
    command: tuple[str, ...] = ()
    """What the user ran, for run.json."""
    resume: bool = False
    """Continue the run directory's latest checkpoint."""


def train(job: Job, mesh: Mesh, say: Say) -> dict[str, Any]:
    """Train, observe, and leave a run directory behind; returns run.json. ``say`` shows a line to the user."""
    config, out = job.config, job.out
    trainer = Trainer(config, mesh, to_resume=job.resume)
    first_step, restarts = _resume(trainer, out, say) if job.resume else (0, [])
    run = describe_ranks(out, mesh, job.command)
    run |= describe_training(config, mesh, trainer.placements, trainer.corpus) | {"restarts": restarts}
    if mesh.rank == 0:
        write_run(out, run)
        write_atomically(out / "config.toml", lambda path: path.write_text(to_toml(config), encoding="utf-8"))
    status = Status(config, mesh, say)
    with observe(
        trainer.model, out=out, profile=schedule_of(config), optimizer=trainer.optimizer, first_step=first_step
    ) as obs:
        for step in range(first_step, config.train.steps):
            losses, norm = trainer.train_step(step, obs)
            obs.pause()
            status.step(step, losses, norm, lambda: busiest_rank(trainer.loads_GLE.tolist(), trainer.placements))
            validation = None
            if _due(step, config.train.steps, config.train.eval_every, at_end=True):
                validation = status.validated(step, trainer.validate())
            to_save = _due(step, config.train.steps, config.checkpoint.every, at_end=config.checkpoint.every > 0)
            if to_save:
                _save(trainer, out, step + 1, say)
            obs.step(
                loss=losses[0],
                tokens=status.tokens_per_step // mesh.world.size,
                validation_loss=validation,
                gradient_norm=norm,
            )
            if to_save:
                obs.flush()
            status.begin()
    run["result"] |= status.result() | {
        "device_hours": mesh.world.size * trainer.stopwatch.seconds / 3600,
        "restarts": len(restarts),
    }
    if mesh.rank == 0:
        try:
            write_run(out, run)
        except OSError as error:
            say(f"run.json could not be written again and lacks the results: {error.strerror}")
    return run


def _save(trainer: Trainer, out: Path, next_step: int, say: Say) -> None:
    """Save a checkpoint; where there is no room for one, training goes on and the last one stays."""
    try:
        say(f"Wrote {checkpoint.save(trainer, out, next_step, trainer.config.checkpoint.keep)}")
    except checkpoint.CheckpointFailedError as error:
        say(f"No checkpoint, training goes on: {error.message}")


def _due(step: int, steps: int, every: int, *, at_end: bool) -> bool:
    """Whether something that happens every ``every`` steps (0: never) happens after ``step``."""
    return (at_end and step == steps - 1) or (every > 0 and (step + 1) % every == 0)


def _resume(trainer: Trainer, out: Path, say: Say) -> tuple[int, list[dict[str, Any]]]:
    """Load the latest checkpoint; returns the next step, and all restarts of this run, for run.json."""
    folder = checkpoint.latest_checkpoint(out)
    next_step = checkpoint.load(trainer, folder)
    if next_step >= trainer.config.train.steps:
        raise ConfigError("train.steps", trainer.config.train.steps, f"must exceed the {next_step} steps already done")
    trainer.stopwatch.add(seconds_after(out, next_step))
    say(f"Resumed {folder}: next is step {next_step}")
    restarts = read_run(out).get("restarts", [])
    return next_step, [*restarts, {"step": next_step, "at": datetime.now(UTC).isoformat(timespec="seconds")}]
