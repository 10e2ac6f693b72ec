"""``observe`` in a loop of one's own: what is counted, what is not, and that the loop never notices."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from moescope_hooks import Attachment, Schedule, collective, observe, traced
from moescope_hooks.attach import Call
from moescope_hooks.names import parse_range_name
from moescope_hooks.observation import Observation
from torch import nn
from toy_moe import EXPERTS, ToyModel, train_toy

from moescope.telemetry import open_telemetry


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Several would fight for the cores with other tests."""
    torch.set_num_threads(1)


def expert_load(out: Path) -> pl.DataFrame:
    telemetry = open_telemetry(out)
    assert telemetry is not None
    return telemetry.expert_load


@pytest.mark.parametrize("recompute", [None, True, False])
def test_counts_equal_a_direct_count_and_recomputation_does_not_count(tmp_path: Path, recompute: bool | None) -> None:
    model = ToyModel(recompute)
    with observe(model, out=tmp_path) as obs:
        train_toy(model, obs)
    load = expert_load(tmp_path)
    assert load.height == 3 * 2 * 2
    for layer, module in enumerate(model.layers):
        rows = load.filter(pl.col("layer") == layer)
        passes = module.counted if recompute is None else module.counted[::2]
        assert rows.select("step", "microbatch").rows() == [(s, m) for s in range(3) for m in range(2)]
        assert rows["counts"].to_list() == passes


def test_losses_are_the_same_with_and_without_hooks(tmp_path: Path) -> None:
    plain = train_toy(ToyModel(), None)
    model = ToyModel()
    with observe(model, out=tmp_path, profile=Schedule(start=1, steps=1)) as obs:
        observed = train_toy(model, obs)
    assert observed == plain


def test_router_figures_are_those_of_the_formulas(tmp_path: Path) -> None:
    model = ToyModel()
    seen: list[torch.Tensor] = []
    model.layers[0].gate.register_forward_hook(lambda _m, _i, out: seen.append(out.detach()))
    with observe(model, out=tmp_path) as obs:
        train_toy(model, obs, steps=1, microbatches=1)
    row = expert_load(tmp_path).row(0, named=True)
    p = seen[0].softmax(-1)
    top = seen[0].sort(descending=True).values
    assert row["entropy"] == pytest.approx(float(-(p * p.log()).sum(-1).mean() / torch.tensor(4.0).log()), rel=1e-5)
    assert row["margin"] == pytest.approx(float((top[:, 1] - top[:, 2]).mean()), rel=1e-5)
    assert row["bf16_flips"] is None


def test_figures_are_those_of_the_first_microbatches(tmp_path: Path) -> None:
    model = ToyModel()
    with observe(model, out=tmp_path) as obs:
        train_toy(model, obs, steps=2, microbatches=4)
    rows = expert_load(tmp_path).filter(pl.col("layer") == 0)
    assert rows["entropy"].is_not_null().to_list() == [True, True, False, False] * 2


def test_evaluation_and_what_follows_a_pause_do_not_count(tmp_path: Path) -> None:
    model = ToyModel()
    x = torch.randn(16, 8)
    with observe(model, out=tmp_path) as obs:
        obs.microbatch()
        model(x).backward()
        model.eval()
        model(x)
        model.train()
        obs.pause()
        model(x)
        obs.step(loss=1.0, tokens=16, validation_loss=2.0)
    load = expert_load(tmp_path)
    assert load.select("step", "microbatch", "layer").rows() == [(0, 0, 0), (0, 0, 1)]
    telemetry = open_telemetry(tmp_path)
    assert telemetry is not None
    assert telemetry.step.select("loss", "validation_loss", "tokens").rows() == [(1.0, 2.0, 16)]


def test_missing_markers_are_inferred_and_said(tmp_path: Path) -> None:
    model = ToyModel()
    with observe(model, out=tmp_path) as obs:
        train_toy(model, obs, steps=1, microbatches=3, mark=False)
    assert expert_load(tmp_path)["microbatch"].unique().to_list() == [0, 1, 2]
    telemetry = open_telemetry(tmp_path)
    assert telemetry is not None
    assert any("microbatch markers" in problem for problem in telemetry.problems)


def test_any_model_through_attachments_or_one_call(tmp_path: Path) -> None:
    """A model that does not report: counts read from a gate's output, or handed over."""
    model = nn.Sequential(nn.Linear(8, EXPERTS))

    def layers(model: nn.Module) -> list[Attachment]:
        def count(call: Call) -> torch.Tensor:
            return torch.bincount(call.output.argmax(-1), minlength=EXPERTS)

        return [Attachment(7, model.get_submodule("0"), count)]

    with observe(model, out=tmp_path, moe_layers=layers) as obs:
        obs.microbatch()
        out = model(torch.randn(16, 8))
        obs.expert_counts(9, torch.tensor([1, 2, 3, 4]), dropped=torch.tensor([0, 0, 0, 1]))
        obs.step()
    load = expert_load(tmp_path)
    assert load["layer"].to_list() == [7, 9]
    assert load["counts"].to_list() == [torch.bincount(out.argmax(-1), minlength=4).tolist(), [1, 2, 3, 4]]
    assert load["dropped"].to_list() == [None, [0, 0, 0, 1]]


def test_a_failure_inside_costs_telemetry_never_the_loop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = ToyModel()

    def layers(model: nn.Module) -> list[Attachment]:
        def broken(*_: Any) -> torch.Tensor:
            raise RuntimeError("no such attribute")

        return [Attachment(0, model.get_submodule("layers.0"), broken)]

    plain = train_toy(ToyModel(), None)
    with observe(model, out=tmp_path, moe_layers=layers) as obs:
        assert train_toy(model, obs) == plain
    telemetry = open_telemetry(tmp_path)
    assert telemetry is not None
    assert telemetry.step.height == 3
    assert any("no such attribute" in problem for problem in telemetry.problems)
    assert len(caplog.records) == 1


def test_a_run_directory_that_cannot_be_made_costs_telemetry_never_the_loop(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    model = ToyModel()
    with observe(model, out=tmp_path / "file" / "run", profile=Schedule(start=0, steps=1)) as obs:
        assert train_toy(model, obs) == train_toy(ToyModel(), None)


def test_an_exception_of_the_loop_comes_out_and_what_was_recorded_stays(tmp_path: Path) -> None:
    model = ToyModel()

    def loop() -> None:
        with observe(model, out=tmp_path) as obs:
            train_toy(model, obs, steps=2)
            raise KeyError

    with pytest.raises(KeyError):
        loop()
    assert expert_load(tmp_path)["step"].unique().to_list() == [0, 1]


READERS = ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__")
"""Calls that wait for a device."""


def test_nothing_reads_a_tensor_back_in_the_training_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: dict[bool, int] = {}
    main = threading.main_thread()

    def counting(method: Any, observed: bool) -> Any:
        def call(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            counts[observed] = counts.get(observed, 0) + (threading.current_thread() is main)
            return method(self, *args, **kwargs)

        return call

    for observed in (False, True):
        with monkeypatch.context() as patch:
            for name in READERS:
                patch.setattr(torch.Tensor, name, counting(getattr(torch.Tensor, name), observed))
            model = ToyModel()
            if observed:
                with observe(model, out=tmp_path) as obs:
                    train_toy(model, obs)
            else:
                train_toy(model, None)
    assert counts[True] == counts[False]


def test_step_rows_follow_each_other(tmp_path: Path) -> None:
    model = ToyModel()
    before = time.time_ns()
    with observe(model, out=tmp_path, first_step=100) as obs:
        train_toy(model, obs)
    telemetry = open_telemetry(tmp_path)
    assert telemetry is not None
    step = telemetry.step
    assert step["step"].to_list() == [100, 101, 102]
    times = [t for row in step.select("start_ns", "end_ns").rows() for t in row]
    assert before < times[0]
    assert times == sorted(times)
    assert step["parameter_bytes"].to_list() == [4 * sum(p.numel() for p in model.parameters())] * 3
    assert telemetry.run["basis"] == "measured"
    assert telemetry.run["controls"] == []


def read_trace(path: Path) -> dict[str, Any]:
    with gzip.open(path) as file:
        trace: dict[str, Any] = json.load(file)
    return trace


def test_every_window_is_a_file_whose_steps_are_the_loops(tmp_path: Path) -> None:
    model = ToyModel()
    with observe(model, out=tmp_path, first_step=10, profile=Schedule(start=11, steps=2, windows=2, every=3)) as obs:
        train_toy(model, obs, steps=6)
    for name, steps in (("rank0.json.gz", [11, 12]), ("rank0-w1.json.gz", [14, 15])):
        trace = read_trace(tmp_path / "traces" / name)
        marked = [e["name"] for e in trace["traceEvents"] if str(e["name"]).startswith("ProfilerStep#")]
        assert sorted(marked) == [f"ProfilerStep#{step}" for step in steps]
        assert trace["moescope"]["steps"] == steps
        assert trace["profile_memory"] == trace["record_shapes"] == 1
    assert not any(path.suffix in (".json", ".tmp") for path in (tmp_path / "traces").iterdir())


@pytest.mark.parametrize("tensors", [1, 2])
def test_ranges_enclose_a_region_forward_and_backward(tmp_path: Path, tensors: int) -> None:
    """Exactly the matmuls of a traced region lie in its ranges, one forward and two backward for each tensor, although
    what it takes and gives has other uses, whose backward passes come before and after the region's."""
    weight = torch.randn(8, 8, requires_grad=True)
    model = nn.Linear(8, 8)
    with observe(model, out=tmp_path, profile=Schedule(start=0, steps=1)) as obs:
        obs.microbatch()
        taken = [model(torch.randn(4, 8)) for _ in range(tensors)]
        beside = sum((x @ weight).sum() for x in taken)
        given = traced("experts", 5, lambda *xs: tuple(x @ weight for x in xs), *taken)
        loss = sum((model(y) + y @ weight).sum() for y in given)
        (loss + beside).backward()
        obs.step()
    events = [e for e in read_trace(tmp_path / "traces" / "rank0.json.gz")["traceEvents"] if e.get("ph") == "X"]
    ranges = {e["name"]: e for e in events if parse_range_name(e["name"])}
    assert set(ranges) == {"moescope::L5.mb0.experts", "moescope::L5.mb0.experts.bwd"}

    def num_inside(outer: dict[str, Any]) -> int:
        start, end = outer["ts"], outer["ts"] + outer["dur"]
        return sum(e["name"] == "aten::mm" and start <= e["ts"] < end for e in events)

    assert num_inside(ranges["moescope::L5.mb0.experts"]) == tensors
    assert num_inside(ranges["moescope::L5.mb0.experts.bwd"]) == 2 * tensors


@pytest.mark.parametrize("what", ["changed in place", "a view", "what it was given", "a parameter"])
def test_a_region_may_give_anything(tmp_path: Path, what: str) -> None:
    """Its backward range is recorded, and gradients are what they are without."""
    weight = torch.randn(8, 8, requires_grad=True)
    x = torch.randn(4, 8, requires_grad=True)

    def region(given: torch.Tensor) -> torch.Tensor:
        if what == "what it was given":
            return given
        return weight if what == "a parameter" else (given @ weight)[:2] if what == "a view" else given @ weight

    def loss(run: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        out = run(x * 2)
        return (out.add_(1) if what == "changed in place" else out).pow(2).sum()

    expected = torch.autograd.grad(loss(region), (x, weight), allow_unused=True)
    with observe(nn.Linear(8, 8), out=tmp_path, profile=Schedule(start=0, steps=1)) as obs:
        obs.microbatch()
        found = torch.autograd.grad(loss(lambda y: traced("experts", 5, region, y)), (x, weight), allow_unused=True)
        obs.step()
    for one, other in zip(expected, found, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)
    names = {e["name"] for e in read_trace(tmp_path / "traces" / "rank0.json.gz")["traceEvents"]}
    assert "moescope::L5.mb0.experts" in names
    assert "moescope::L5.mb0.experts.bwd" in names


def test_without_an_observation_regions_run_as_they_are() -> None:
    assert traced("experts", 0, lambda x: x + 1, 1) == 2
    with collective("dispatch", layer=0, group="g", send_bytes=[1], recv_bytes=[1]):
        pass


def test_observation_is_what_observe_makes(tmp_path: Path) -> None:
    assert isinstance(observe(ToyModel(), out=tmp_path), Observation)
