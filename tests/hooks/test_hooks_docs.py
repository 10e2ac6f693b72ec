"""The integration that README and docs/hooks.md show runs as it stands there, in a loop of the usual form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from toy_moe import DIM, ToyModel

from moescope.telemetry import open_telemetry

ROOT = Path(__file__).parents[2]


class Batch:
    """Two microbatches."""

    num_tokens = 32

    def __iter__(self) -> Iterator[Tensor]:
        yield from torch.randn(2, 16, DIM).unbind()


def forward_backward(model: ToyModel, microbatch: Tensor) -> Tensor:
    loss: Tensor = model(microbatch)
    loss.backward()
    return loss.detach()


def readme_loop() -> str:
    """The loop of the README with the three lines added."""
    fence = re.search(r"^```diff\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    assert fence is not None
    lines = fence[1].splitlines()
    assert sum(line.startswith("+") for line in lines) == 3
    assert all(line[:1] in "+ " for line in lines)
    return "from moescope_hooks import Schedule, observe\n" + "\n".join(line[1:] for line in lines)


def hooks_loop() -> str:
    """The loop of docs/hooks.md."""
    fences = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/hooks.md").read_text(encoding="utf-8"), re.M | re.S)
    return str(next(text for text in fences if "with observe(" in text))


@pytest.mark.parametrize("loop", [readme_loop, hooks_loop])
def test_the_loop_of_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: Any) -> None:
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    model = ToyModel()
    names = {
        "model": model,
        "batches": [Batch() for _ in range(12)],
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "forward_backward": forward_backward,
    }
    exec(compile(loop(), "docs", "exec"), names)
    telemetry = open_telemetry(tmp_path / "runs/mine")
    assert telemetry is not None
    assert telemetry.problems == []
    assert telemetry.step["step"].to_list() == list(range(12))
    assert telemetry.expert_load.height == 12 * 2 * 2
    assert (tmp_path / "runs/mine/traces/rank0.json.gz").exists()
