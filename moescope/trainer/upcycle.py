"""Experts from a dense model: each a copy of the dense block of its layer, or one of its equal slices in turn.

(Komatsuzaki et al., Sparse Upcycling: copies; He et al., Upcycling Large Language Models into Mixture of Experts:
slices, whose output is scaled so that a token's mixture has the dense block's output in expectation.)
With copies and weights that sum to 1 the model starts exactly as the dense one.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_state

from moescope.errors import InputUnreadableError
from moescope.trainer import checkpoint
from moescope.trainer.config import Config
from moescope.trainer.experts import Experts
from moescope.trainer.model import Transformer
from moescope.trainer.settings.rules import require

PARTS = {"gate_eDF": ("gate", 0), "up_eDF": ("up", 0), "down_eFD": ("down", 1)}
"""Of each weight of the experts, the dense block's weight and its axis along the inner width."""


@torch.no_grad()
def upcycle(model: Transformer, config: Config) -> None:
    """Load a dense model's weights into ``model``; routers keep their own. Every rank reads for itself."""
    source = Path(config.model.upcycle_from)
    folder = source if (source / checkpoint.PROGRESS).is_file() else checkpoint.latest_checkpoint(source)
    found = _tensors(folder)
    for module_name, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            full_name = f"{module_name}.{name}"
            if isinstance(module, Experts):
                block = module_name.removesuffix(".experts")
                part, axis = PARTS[name]
                _fill(parameter, _of(found, f"{block}.{part}.weight", folder), module.experts, axis, config)
            elif not full_name.endswith(".router.weight_ED"):
                dense = _of(found, full_name, folder)
                fits = dense.shape == parameter.shape
                rule = f"its {full_name} is {tuple(dense.shape)}, the model's is {tuple(parameter.shape)}"
                require(fits, "model.upcycle_from", config.model.upcycle_from, rule)
                parameter.copy_(dense)


def _fill(weight: Tensor, dense: Tensor, experts: list[int], axis: int, config: Config) -> None:
    """Give each expert its slice of ``dense`` [out, in] along the inner width; ``weight`` is [e, in, out]."""
    width, dense_width = config.moe.expert_hidden_dim, dense.shape[axis]
    rule = f"must divide the dense model's inner width {dense_width}"
    require(dense_width % width == 0, "moe.expert_hidden_dim", width, rule)
    num_slices = dense_width // width
    scale = num_slices if axis == 1 else 1
    for i, expert in enumerate(experts):
        part = dense.narrow(axis, expert % num_slices * width, width)
        weight[i].copy_(part.T * scale)


def _tensors(folder: Path) -> dict[str, Tensor]:
    """The weights of a checkpoint by parameter name."""
    reader = FileSystemReader(folder)
    shapes = {
        name: entry.size
        for name, entry in reader.read_metadata().state_dict_metadata.items()
        if name.startswith("model/") and isinstance(entry, TensorStorageMetadata)
    }
    state = {name: torch.empty(size) for name, size in shapes.items()}
    with checkpoint.unwarned():
        load_state(state, storage_reader=reader, no_dist=True)
    return {name.removeprefix("model/"): tensor for name, tensor in state.items()}


def _of(found: dict[str, Tensor], name: str, folder: Path) -> Tensor:
    if name not in found:
        raise InputUnreadableError(
            f"{folder} has no weight {name} to make experts of",
            hint="train it with --set model.dense_baseline=active, and as many layers",
        )
    return found[name]
