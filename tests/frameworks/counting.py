"""What the tests of frameworks share: a loop, and counts taken directly beside the hooks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from moescope_hooks import observe
from torch import Tensor, nn

from moescope.telemetry import Telemetry, open_telemetry

STEPS, MICROBATCHES = 3, 2


def observed(model: nn.Module, out: Path, forward: Callable[[], Tensor], **options: Any) -> Telemetry:
    """Train a few steps under ``observe``; the telemetry, which must have no problems."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observe(model, out=out, optimizer=optimizer, **options) as obs:
        for _ in range(STEPS):
            for _ in range(MICROBATCHES):
                obs.microbatch()
                loss = forward()
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            obs.step(loss=loss)
    telemetry = open_telemetry(out)
    assert telemetry is not None
    assert telemetry.problems == []
    assert telemetry.step["loss"].is_not_nan().all()
    return telemetry


def places(layers: list[int]) -> list[tuple[int, int, int]]:
    """(step, microbatch, layer) of every row that must be there, in order."""
    return [(step, mb, layer) for step in range(STEPS) for mb in range(MICROBATCHES) for layer in layers]


def assert_counts(telemetry: Telemetry, layers: list[int], direct: list[list[int]]) -> None:
    """The telemetry has exactly the counts of ``direct``, one per forward pass of a layer."""
    assert telemetry.expert_load.select("step", "microbatch", "layer").rows() == places(layers)
    assert telemetry.expert_load["counts"].to_list() == direct


def bincount(chosen: Tensor, num_experts: int) -> list[int]:
    """How often each expert was chosen."""
    return torch.bincount(chosen.detach().reshape(-1), minlength=num_experts).tolist()
