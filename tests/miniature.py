"""A model small enough to train for 20 steps in a second or two, and text to train it on."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

from moescope.trainer import checkpoint
from moescope.trainer.config import Config
from moescope.trainer.data import Corpus, Domain
from moescope.trainer.loop import Trainer
from moescope.trainer.mesh import Mesh, make_mesh, single_mesh
from moescope.trainer.presets import load_config

SECTIONS: dict[str, dict[str, Any]] = {
    "model": {"num_layers": 3, "dim": 32, "num_heads": 2, "dense_hidden_dim": 64},
    "moe": {
        "num_experts": 8,
        "top_k": 2,
        "expert_hidden_dim": 32,
        "balance": "aux_microbatch",
        "balance_coefficient": 0.05,
    },
    "train": {
        "steps": 20,
        "sequence_length": 32,
        "microbatch_sequences": 2,
        "global_batch_sequences": 16,
        "learning_rate": 2e-3,
        "router_learning_rate_ratio": 0.2,
        "bucket_bytes": 16384,
        "eval_sequences": 4,
    },
}


def mini_config(**overrides: dict[str, Any]) -> Config:
    """The miniature's configuration, with some sections' fields overridden."""
    return load_config("tiny", **{k: SECTIONS.get(k, {}) | overrides.get(k, {}) for k in SECTIONS | overrides})


def mini_corpus() -> Corpus:
    """Two domains made of different words, the same on every Python."""
    domains = []
    for name, words in (("sea", "wave salt tide foam gull"), ("field", "seed corn plough barn hedge")):
        draw = random.Random(name)
        text = " ".join(draw.choice(words.split()) for _ in range(4000)).encode()
        data = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        domains.append(Domain(name, data[:-1000], data[-1000:]))
    return Corpus(tuple(domains), ())


def mini_trainer(config: Config, mesh: Mesh) -> Trainer:
    """A trainer on the miniature's text."""
    return Trainer(config, mesh, mini_corpus())


def alone() -> Mesh:
    """One rank without a process group, on one thread: several would fight for the cores with other tests."""
    torch.set_num_threads(1)
    return single_mesh()


def together(ep_size: int, layout: str = "contiguous", tp_size: int = 1) -> Mesh:
    """The pool's ranks in expert groups of ``ep_size`` and tensor groups of ``tp_size``."""
    return make_mesh(ep_size, layout, torch.device("cpu"), tp_size)


def losses_of(trainer: Trainer, steps: int) -> list[float]:
    """Cross-entropy over the global batch, step by step."""
    return [float(trainer.train_step(step, None)[0][0]) for step in range(steps)]


def resumed_losses(trainer: Trainer, out: Path) -> list[float]:
    """Load the run directory's latest checkpoint and train 3 steps: their losses."""
    first = checkpoint.load(trainer, checkpoint.latest_checkpoint(out))
    return [float(trainer.train_step(step, None)[0][0]) for step in range(first, first + 3)]
