"""Attachment points found by the names of classes; the real packages are tested in tests/frameworks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from moescope_hooks import observe
from moescope_hooks.frameworks import framework_layers
from torch import nn

from moescope.telemetry import open_telemetry


class NamedLike(nn.Module):
    """Stands in for a framework's class of the same name and package, where the package cannot be had."""

    def __init__(self, output: Any = None) -> None:
        super().__init__()
        self.answer = output

    def forward(self, *_args: Any, **_kwargs: Any) -> Any:
        return self.answer


def stand_in(package: str, name: str, output: Any = None) -> NamedLike:
    made = type(name, (NamedLike,), {"__module__": f"{package}.somewhere"})(output)
    assert isinstance(made, NamedLike)
    return made


COUNTS = torch.tensor([1, 2, 0, 1])


def with_counts(module: NamedLike) -> NamedLike:
    module.exp_counts = COUNTS
    return module


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        (stand_in("torchtitan", "RoutedExperts"), (None, None, None, COUNTS)),
        (stand_in("olmo_core", "MoERouter", (None, None, COUNTS, None)), ()),
        (stand_in("olmo_core", "MoERouterV2", (None, None, COUNTS, None)), ()),
        (stand_in("megablocks", "LearnedRouter", (torch.zeros(2, 4), None, torch.tensor([[1, 3], [0, 1]]))), ()),
        (with_counts(stand_in("deepspeed", "MOELayer")), ()),
    ],
    ids=["torchtitan", "olmo-core", "olmo-core 3", "megablocks", "deepspeed"],
)
def test_attachment_points_by_name(tmp_path: Path, module: NamedLike, arguments: tuple[Any, ...]) -> None:
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.Identity(), nn.ModuleDict({"moe": module})])})
    with observe(model, out=tmp_path) as obs:
        obs.microbatch()
        module(*arguments)
        obs.step()
    telemetry = open_telemetry(tmp_path)
    assert telemetry is not None
    assert telemetry.problems == []
    assert telemetry.expert_load.select("layer", "counts").rows() == [(1, COUNTS.tolist())]


def test_other_modules_are_left_alone() -> None:
    assert list(framework_layers(nn.Sequential(nn.Linear(2, 2), stand_in("mine", "TopKRouter")))) == []
