"""Compiled models: the same counts as without, in one graph, counted once when recomputed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from moescope_hooks import Attachment, observe
from moescope_hooks.attach import Call
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from moescope.telemetry import Telemetry, open_telemetry

DIM, EXPERTS, TOP_K = 8, 4, 2


class Layer(nn.Module):
    """A gate and something to train; no Python inside that would break a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(DIM, EXPERTS)
        self.up = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        """[T, D] -> [T, D]."""
        scores = self.gate(x).softmax(-1).topk(TOP_K).values
        return x + self.up(x) * scores.sum(-1, keepdim=True)


class Model(nn.Module):
    """Two layers, optionally recomputed."""

    def __init__(self, recompute: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.recompute = recompute

    def forward(self, x: Tensor) -> Tensor:
        """The loss."""
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return x.square().mean()


def gates(model: nn.Module) -> Iterator[Attachment]:
    def count(call: Call) -> Tensor:
        chosen = call.output.detach().topk(TOP_K, dim=-1).indices.reshape(-1)
        return torch.zeros(EXPERTS, dtype=torch.int64).scatter_add_(0, chosen, torch.ones_like(chosen))

    names = [(name, module) for name, module in model.named_modules() if name.endswith("gate")]
    return iter([Attachment(i, module, count) for i, (_, module) in enumerate(names)])


def broken(model: nn.Module) -> Iterator[Attachment]:
    def count(call: Call) -> Tensor:
        raise RuntimeError(f"{type(call).__name__} has no counts")

    return iter([Attachment(0, model.get_submodule("layers.0.gate"), count)])


def train(step: Any, model: Model, obs: Any, steps: int = 2) -> list[float]:
    """Losses of a few steps of two microbatches."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        for _ in range(2):
            obs.microbatch()
            loss = step(torch.randn(16, DIM, generator=generator))
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        obs.step()
    return losses


def telemetry_of(out: Path) -> Telemetry:
    telemetry = open_telemetry(out)
    assert telemetry is not None
    return telemetry


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch.set_num_threads(1)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_compiled_model_has_the_counts_of_an_eager_one(tmp_path: Path, recompute: bool, fullgraph: bool) -> None:
    eager = Model()
    with observe(eager, out=tmp_path / "eager", moe_layers=gates) as obs:
        losses = train(eager, eager, obs)
    model = Model(recompute)
    with observe(model, out=tmp_path / "compiled", moe_layers=gates) as obs:
        compiled = torch.compile(model, fullgraph=fullgraph, backend="aot_eager")
        assert train(compiled, model, obs) == pytest.approx(losses, rel=1e-5)
    found, expected = telemetry_of(tmp_path / "compiled"), telemetry_of(tmp_path / "eager")
    assert found.problems == []
    columns = ["step", "microbatch", "layer", "counts"]
    assert found.expert_load.select(columns).equals(expected.expert_load.select(columns))
    assert found.expert_load.height == 2 * 2 * 2


@pytest.mark.filterwarnings("ignore")
def test_evaluation_of_a_compiled_model_does_not_count(tmp_path: Path) -> None:
    model = Model()
    with observe(model, out=tmp_path, moe_layers=gates) as obs:
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        obs.microbatch()
        compiled(torch.randn(16, DIM)).backward()
        model.eval()
        compiled(torch.randn(16, DIM))
        obs.step()
    assert telemetry_of(tmp_path).expert_load.height == 2


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_outlives_the_observation(tmp_path: Path) -> None:
    model = Model()
    with observe(model, out=tmp_path, moe_layers=gates) as obs:
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        train(compiled, model, obs, steps=1)
    compiled(torch.randn(16, DIM)).backward()
    assert telemetry_of(tmp_path).expert_load["step"].unique().to_list() == [0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fullgraph", [False, True])
def test_counts_that_cannot_be_read_do_not_break_the_graph(tmp_path: Path, fullgraph: bool) -> None:
    model = Model()
    with observe(model, out=tmp_path, moe_layers=broken) as obs:
        compiled = torch.compile(model, fullgraph=fullgraph, backend="aot_eager")
        train(compiled, model, obs)
    telemetry = telemetry_of(tmp_path)
    assert telemetry.expert_load.is_empty()
    assert any("expert counts of layer 0" in problem for problem in telemetry.problems)
