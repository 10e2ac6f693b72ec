"""What the pool's ranks run for the tests: functions of a module that they can import."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from miniature import losses_of, mini_trainer, resumed_losses, together
from moescope_hooks import Schedule, clock, observe
from moescope_hooks.routing import Routing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from toy_moe import DIM, ToyModel, train_toy

from moescope.trainer import checkpoint
from moescope.trainer.comm import Splits, exchange_rows
from moescope.trainer.config import Config
from moescope.trainer.loop import Job
from moescope.trainer.loop import train as train_job
from moescope.trainer.moe import MoE
from moescope.trainer.overlap import run

STEPS = 20


def train(config: Config, ep_size: int, layout: str, steps: int = STEPS) -> tuple[list[float], dict[str, float]]:
    """Losses of ``steps`` steps and the validation losses after them."""
    trainer = mini_trainer(config, together(ep_size, layout, config.parallel.tp_size))
    return losses_of(trainer, steps), trainer.validate()


def exchange(empty_rank: int, overlapped: bool) -> bool:
    """Each rank sends i + 1 rows to rank i, the empty rank none; the gradient of the sum comes back as ones."""
    group = together(4).expert
    rank = dist.get_rank()
    send = tuple(0 if rank == empty_rank else peer + 1 for peer in range(4))
    recv = tuple(0 if peer == empty_rank else rank + 1 for peer in range(4))
    x = torch.full((sum(send), 3), float(rank), requires_grad=True)
    out = run(exchange_rows(x, Splits(send, recv), group, "dispatch", 0, overlapped=overlapped))
    (out * torch.arange(1.0, 4.0)).sum().backward()
    expected = torch.cat([torch.full((n, 3), float(peer)) for peer, n in enumerate(recv)])
    assert x.grad is not None
    return torch.equal(out, expected) and torch.equal(x.grad, torch.arange(1.0, 4.0).expand_as(x))


def measure_clocks() -> list[dict[str, Any]]:
    """The clock rows of this rank."""
    return clock.measure([1, 2, 3], "start")


def meet_without(absent: int) -> bool:
    """Whether the meeting is called off when one rank stays away, and a barrier still passes."""
    called_off = True
    if dist.get_rank() == absent:
        next(clock._meetings)
    else:
        called_off = clock.announce("test", {}, 0.5) is None
    dist.barrier()
    return called_off


def observe_training(config: Config, out: Path, ep_size: int) -> tuple[list[float], list[list[int]]]:
    """Train under ``observe``; returns the losses and a direct count: [layer, counts...] per forward pass."""
    trainer = mini_trainer(config, together(ep_size, tp_size=config.parallel.tp_size))
    direct: list[list[int]] = []
    for module in trainer.model.modules():
        if isinstance(module, MoE):
            module.register_routing_hook(_direct_count(module.layer, direct))
    schedule = Schedule(start=1, steps=2)
    losses = []
    with observe(trainer.model, out=out, profile=schedule, optimizer=trainer.optimizer) as obs:
        for step in range(4):
            loss, norm = trainer.train_step(step, obs)
            losses.append(float(loss[0]))
            obs.step(loss=loss[0], tokens=128, gradient_norm=norm)
    return losses, direct


def observe_on_demand(out: Path, steps: int) -> None:
    """Train a toy until a window that rank 3 asked for by a file has been recorded by ranks 1 and 2."""
    file, model = out / "profile", ToyModel()
    schedule = Schedule(start=None, steps=steps, on_file=file)
    with observe(model, out=out, profile=schedule, measure_clock=False) as obs:
        for step in range(400):
            train_toy(model, obs, steps=1)
            if step == 5 and dist.get_rank() == 3:
                (out / "beside").write_text('{"ranks": [1, 2]}')
                (out / "beside").rename(file)
            time.sleep(0.005)
            dist.barrier()


def observe_wrapped(out: Path, wrapper: str) -> list[list[list[int]]]:
    """Train a toy under DDP or FSDP2 on data of this rank's own; returns a direct count by layer and microbatch."""
    model = ToyModel(recompute=False if wrapper.endswith("recomputed") else None)
    if wrapper == "ddp":
        wrapped: Any = torch.nn.parallel.DistributedDataParallel(model)
    else:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        wrapped = fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    with observe(wrapped, out=out, optimizer=optimizer) as obs:
        for _ in range(2):
            obs.microbatch()
            loss = wrapped(torch.randn(16, DIM, generator=generator))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            obs.step(loss=loss)
    passes = slice(None, None, 2) if wrapper.endswith("recomputed") else slice(None)
    return [layer.counted[passes] for layer in model.layers]


def run_job(job: Job, ep_size: int) -> None:
    """A whole run, as the command does it."""
    train_job(job, together(ep_size), lambda _: None)


def observe_placed(config: Config, out: Path) -> tuple[list[float], list[list[int]], list[list[list[float]]]]:
    """Train 3 observed steps; returns losses, this rank's assignments by pass, and the last step's loads."""
    trainer = mini_trainer(config, together(4))
    direct: list[list[int]] = []
    for module in trainer.model.modules():
        if isinstance(module, MoE):
            module.register_routing_hook(_direct_count(module.layer, direct))
    losses = []
    with observe(trainer.model, out=out, optimizer=trainer.optimizer) as obs:
        for step in range(3):
            loss, _ = trainer.train_step(step, obs)
            losses.append(float(loss[0]))
            obs.step(loss=loss[0])
    return losses, direct, trainer.loads_GLE.tolist()


def _direct_count(layer: int, direct: list[list[int]]) -> Callable[[Routing], None]:
    return lambda routing: direct.append([layer, *routing.counts_E.tolist()])


def save_and_go_on(config: Config, out: Path, ep_size: int) -> list[float]:
    """Train 3 steps, save, and train 3 more: their losses."""
    trainer = mini_trainer(config, together(ep_size, tp_size=config.parallel.tp_size))
    losses_of(trainer, 3)
    checkpoint.save(trainer, out, 3, keep=1)
    return [float(trainer.train_step(step, None)[0][0]) for step in range(3, 6)]


def load_and_go_on(config: Config, out: Path, ep_size: int) -> list[float]:
    """Load the latest checkpoint and train 3 steps: their losses."""
    return resumed_losses(mini_trainer(config, together(ep_size, tp_size=config.parallel.tp_size)), out)
