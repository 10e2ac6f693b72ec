"""Checkpoints by torch.distributed.checkpoint: exact to resume, on any number of ranks and any expert group size.

Every tensor has a name that no layout changes: an expert's weights are saved one by one under the expert's number.
A checkpoint is written beside its name and renamed when all ranks have finished, so what has the name is whole.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import StackSummary
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_state
from torch.distributed.checkpoint.state_dict_saver import save as save_state
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from moescope.errors import DataMissingError, InputUnreadableError, MoescopeError
from moescope.trainer.experts import Experts
from moescope.trainer.grads import local_part

if TYPE_CHECKING:
    from moescope.trainer.loop import Trainer

MOMENTS = ("exp_avg", "exp_avg_sq")
PROGRESS = "progress.json"


def checkpoints_in(run: Path) -> list[Path]:
    """The whole checkpoints of a run directory, oldest first."""
    return sorted(path for path in (run / "checkpoints").glob("step-*") if (path / PROGRESS).is_file())


def latest_checkpoint(run: Path) -> Path:
    """The newest whole checkpoint of a run directory."""
    found = checkpoints_in(run)
    if not found:
        raise DataMissingError(
            f"{run} holds no checkpoint to resume from", hint="train with --set checkpoint.every=STEPS to keep some"
        )
    return found[-1]


class CheckpointFailedError(MoescopeError):
    """A checkpoint that could not be written; what was there before is intact."""


def save(trainer: Trainer, run: Path, next_step: int, keep: int) -> Path:
    """Save everything ``next_step`` depends on; a collective call. Keeps the ``keep`` newest checkpoints.

    Where it cannot be written, every rank raises CheckpointFailedError.
    """
    folder = run / "checkpoints" / f"step-{next_step:08d}"
    beside = folder.with_name(f".{folder.name}.tmp")
    try:
        _on_main_rank(trainer, lambda: _prepare(beside))
        with unwarned():
            save_state(_state(trainer), storage_writer=FileSystemWriter(beside), no_dist=_alone(trainer))
        progress = {
            "next_step": next_step,
            "draws": [router.draws.count for router in trainer.routers],
            "seconds": trainer.stopwatch.seconds,
        }
        _on_main_rank(trainer, lambda: _put_in_place(beside, folder, progress, keep))
    except CheckpointException as error:
        _on_main_rank(trainer, lambda: shutil.rmtree(beside, ignore_errors=True))
        raise CheckpointFailedError(f"{folder} could not be written: {_first_failure(error)}") from error
    return folder


def _prepare(beside: Path) -> None:
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)


def _put_in_place(beside: Path, folder: Path, progress: dict[str, Any], keep: int) -> None:
    (beside / PROGRESS).write_text(json.dumps(progress), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    beside.rename(folder)
    for old in checkpoints_in(folder.parents[1])[:-keep]:
        shutil.rmtree(old)


def _on_main_rank(trainer: Trainer, action: Callable[[], None]) -> None:
    """Do something on one rank while the others wait; all raise where it fails."""
    failure: list[OSError | None] = [None]
    if trainer.mesh.rank == 0:
        try:
            action()
        except OSError as error:
            failure = [error]
    if not _alone(trainer):
        dist.broadcast_object_list(failure)
    if failure[0] is not None:
        raise CheckpointException("save", {0: (failure[0], StackSummary.from_list([]))}) from failure[0]


def load(trainer: Trainer, folder: Path) -> int:
    """Bring ``trainer`` to where the checkpoint was made, on whatever layout; returns the next step."""
    try:
        progress = json.loads((folder / PROGRESS).read_text(encoding="utf-8"))
        next_step, draws = int(progress["next_step"]), [int(n) for n in progress["draws"]]
        seconds = float(progress["seconds"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputUnreadableError(f"{folder} is not a whole checkpoint: {error}") from error
    _make_optimizer_state(trainer)
    try:
        with unwarned():
            load_state(_state(trainer), storage_reader=FileSystemReader(folder), no_dist=_alone(trainer))
    except CheckpointException as error:
        raise InputUnreadableError(
            f"{folder} does not fit this model: {_first_failure(error)}",
            hint="resume with the model configuration of the run's config.toml",
        ) from error
    for router, count in zip(trainer.routers, draws, strict=True):
        router.draws.set_extra_state(count)
    trainer.stopwatch.add(seconds)
    return next_step


def _first_failure(error: CheckpointException) -> str:
    failures = list(error.failures.values())
    return str(failures[0][0]).splitlines()[0] if failures else str(error)


def _alone(trainer: Trainer) -> bool:
    return trainer.mesh.world.size == 1


@contextmanager
def unwarned() -> Iterator[None]:
    """Without torch's remark that a single process saves alone: that is meant."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield


def _state(trainer: Trainer) -> dict[str, Any]:
    """Every tensor to save or to load into, by its name."""
    state: dict[str, Any] = {}
    for name, parameter, experts in _named_parameters(trainer.model):
        moments = trainer.optimizer.state.get(parameter, {})
        tensors = {"model": parameter.detach(), **{key: moments[key] for key in MOMENTS if key in moments}}
        for kind, tensor in tensors.items():
            if experts is None:
                state[f"{kind}/{name}"] = tensor
            else:
                state |= {f"{kind}/{name}/{expert}": part for expert, part in _by_expert(tensor, experts)}
        if "step" in moments:
            state[f"step/{name}"] = moments["step"]
    buffers = trainer.model.state_dict()
    parameters = {name for name, _ in trainer.model.named_parameters()}
    state |= {f"buffer/{k}": v for k, v in buffers.items() if k not in parameters and isinstance(v, Tensor)}
    return state


def _named_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, list[int] | None]]:
    """(name, parameter, numbers of the experts along its first axis or None)."""
    for module_name, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            yield f"{module_name}.{name}", parameter, module.experts if isinstance(module, Experts) else None


def _by_expert(tensor: Tensor, experts: list[int]) -> Iterator[tuple[int, Tensor]]:
    """(expert, its slice) for each of ``experts`` that this rank holds; a shard holds some of them, whole."""
    local, first = local_part(tensor), 0
    if isinstance(tensor, DTensor):
        first = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)[1][0]
    yield from zip(experts[first : first + len(local)], local, strict=True)


def _make_optimizer_state(trainer: Trainer) -> None:
    """Give AdamW the state that its first step would create, to be loaded into."""
    for group in trainer.optimizer.param_groups:
        for parameter in group["params"]:
            state = trainer.optimizer.state[parameter]
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            for key in MOMENTS:
                state[key] = torch.zeros_like(parameter)
