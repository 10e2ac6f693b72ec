"""run.json of the bundled trainer: everything a later reader must know to judge or repeat the run."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import torch.distributed as dist
from moescope_hooks.runinfo import describe_run, rank_facts

from moescope import __version__
from moescope.telemetry import open_telemetry
from moescope.trainer.config import Config
from moescope.trainer.data import Corpus
from moescope.trainer.flops import model_cost
from moescope.trainer.mesh import Mesh
from moescope.trainer.placement import Placement, described


def describe_ranks(out: Path, mesh: Mesh, command: Sequence[str]) -> dict[str, Any]:
    """What every run has: hosts, devices, versions, and ``command``, what the user ran. A collective call."""
    ranks: list[Any] = [rank_facts(mesh.rank)]
    if mesh.world.size > 1:
        ranks = [None] * mesh.world.size
        dist.all_gather_object(ranks, rank_facts(mesh.rank))
    run = describe_run(out, ranks)
    run["versions"] |= {"moescope": __version__, "polars": pl.__version__}
    return run | {"command": list(command), "git_commit": git_commit()}


def describe_training(
    config: Config, mesh: Mesh, placements: Mapping[int, Placement], corpus: Corpus
) -> dict[str, Any]:
    """What was trained, how it was laid out, and on which text."""
    cost = model_cost(config)
    return {
        "model": {"preset": config.preset, **dataclasses.asdict(config.model), "moe": dataclasses.asdict(config.moe)},
        "parallel": {
            "world_size": mesh.world.size,
            "ep_size": mesh.expert.size,
            "ep_groups": [list(group) for group in mesh.ep_groups],
            "expert_placement": described(placements),
            "tp_size": mesh.tensor.size,
        },
        "train": dataclasses.asdict(config.train) | {"microbatches": config.num_microbatches(mesh.world.size)},
        "data": {"files": [dataclasses.asdict(file) for file in corpus.files]},
        "seeds": {"model": config.train.seed, "data": config.train.seed},
        "controls": config.control.active(),
        "validates_quality": not config.control.active(),
        "result": {"active_params": cost.active_params, "total_params": cost.total_params},
    }


def read_run(out: Path) -> dict[str, Any]:
    """run.json as an earlier start of this run left it; empty where there is none that can be read."""
    try:
        run = json.loads((out / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return run if isinstance(run, dict) else {}


def seconds_after(out: Path, step: int) -> float:
    """How long the run directory's earlier starts trained from ``step`` on: what a resumed run trains again."""
    telemetry = open_telemetry(out)
    if telemetry is None:
        return 0.0
    lost = telemetry.step.filter((pl.col("rank") == 0) & (pl.col("step") >= step))
    return float((lost["end_ns"] - lost["start_ns"]).sum()) / 1e9


def git_commit() -> str | None:
    """The commit of the checkout this package runs from, with ``-dirty`` if it was changed; None outside of one."""
    here = Path(__file__).resolve().parent

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(here), *arguments], capture_output=True, text=True, check=False)
        except OSError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if not commit or git("ls-files", "--error-unmatch", str(Path(__file__).resolve())) is None:
        return None
    return commit + ("-dirty" if git("status", "--porcelain", "--untracked-files=no") else "")
