"""A whole run on one rank: the golden curve, and the run directory it leaves."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from miniature import alone, losses_of, mini_config, mini_trainer

from moescope.telemetry import open_telemetry
from moescope.trainer.loop import Job, train

GOLDEN = [
    5.551019,
    5.515855,
    5.447691,
    5.375813,
    5.269558,
    5.173512,
    5.088107,
    4.984749,
    4.911332,
    4.832741,
    4.746091,
    4.676288,
    4.610357,
    4.553525,
    4.496852,
    4.476173,
    4.440277,
    4.411439,
    4.410744,
    4.415829,
]


def test_a_fixed_seed_gives_the_golden_curve() -> None:
    """Round-off differs between CPUs by far less than a changed formula would."""
    losses = losses_of(mini_trainer(mini_config(), alone()), 20)
    assert losses == pytest.approx(GOLDEN, rel=2e-4)
    assert losses[-1] < losses[0] - 1


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[str]]:
    """A finished run on text files: its directory, what ``train`` returned, and what the user saw."""
    text = tmp_path_factory.mktemp("text")
    (text / "sea.txt").write_text("wave salt tide foam gull " * 400)
    (text / "field.txt").write_text("seed corn plough barn hedge " * 400)
    config = mini_config(
        data={"files": [f"{text}/sea.txt", f"{text}/field.txt"]},
        train={"steps": 6, "eval_every": 3, "peak_tflops": 1.0},
        control={"router_bias": 1.5},
        profile={"enabled": True, "start": 2, "steps": 1},
    )
    out, lines = tmp_path_factory.mktemp("runs") / "mini", []
    run = train(Job(config, out, ("moescope", "train")), alone(), lines.append)
    return out, run, lines


def test_run_json_says_what_was_run(finished: tuple[Path, dict[str, Any], list[str]]) -> None:
    out, returned, _ = finished
    run = json.loads((out / "run.json").read_text())
    assert run == returned
    assert (run["schema"], run["basis"], run["name"]) == ("moescope.run/1", "measured", "mini")
    assert run["command"] == ["moescope", "train"]
    assert run["parallel"] == {
        "world_size": 1,
        "ep_size": 1,
        "ep_groups": [[0]],
        "expert_placement": [0] * 8,
        "tp_size": 1,
    }
    assert run["controls"] == ["router-bias: +1.5 on the experts of rank 0"]
    assert [(file["domain"], file["bytes"]) for file in run["data"]["files"]] == [("sea-0", 10000), ("field-1", 11200)]
    assert all(len(file["sha256"]) == 64 for file in run["data"]["files"])
    assert run["hosts"][0]["ranks"] == [0]
    assert set(run["versions"]) == {"python", "torch", "moescope", "polars"}
    result = run["result"]
    assert result["tokens"] == 6 * 16 * 32
    assert set(result["validation_loss_by_domain"]) == {"sea-0", "field-1"}
    assert 0 < result["mfu"] < 1
    assert result["mfu"] == pytest.approx(result["flops_per_token"] * result["tokens_per_s"] / 1e12)


def test_the_saved_configuration_is_the_one_that_ran(finished: tuple[Path, dict[str, Any], list[str]]) -> None:
    saved = tomllib.loads((finished[0] / "config.toml").read_text())
    assert saved["train"]["steps"] == 6
    assert saved["control"]["router_bias"] == 1.5


def test_telemetry_has_losses_and_validation(finished: tuple[Path, dict[str, Any], list[str]]) -> None:
    telemetry = open_telemetry(finished[0])
    assert telemetry is not None
    assert telemetry.problems == []
    validated = telemetry.step.filter(telemetry.step["validation_loss"].is_not_null())["step"].to_list()
    assert validated == [2, 5]
    assert telemetry.step["loss"].is_not_null().all()
    assert telemetry.step["tokens"].to_list() == [512] * 6
    held = telemetry.step.row(-1, named=True)
    assert held["gradient_bytes"] == held["parameter_bytes"]
    assert held["optimizer_bytes"] > 2 * held["parameter_bytes"]


def test_the_status_says_everything(finished: tuple[Path, dict[str, Any], list[str]]) -> None:
    lines = [line for line in finished[2] if "loss" in line]
    assert len(lines) == 8
    assert all(word in lines[0] for word in ("step", "loss", "lr", "tokens/s", "MFU", "ms"))
    assert "[profiled]" in next(line for line in lines if line.startswith("step    2"))
    assert sum("validation" in line for line in lines) == 2
