"""The command: what it writes, and what it refuses to overwrite."""

from __future__ import annotations

import json

import pytest

from moescope.cli import main
from moescope.simulate.faults import KINDS

SMALL = ["--ranks", "2", "--steps", "1", "--layers", "2", "--microbatches", "1", "--tokens", "256", "--experts", "8"]


def test_writes_a_run_and_says_what_next(tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["simulate", *SMALL, "--fault", "slow_rank:rank=1", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert f"moescope analyze {out}" in said
    assert "simulated" in said
    run = json.loads((out / "run.json").read_text())
    assert run["controls"] == ["fault: slow_rank:rank=1,factor=1.25,shape=constant,period_ms=50.0"]
    assert json.loads((out / "truth.json").read_text())["faults"][0]["rank"] == 1
    assert sorted(p.name for p in (out / "traces").iterdir()) == ["rank0.json.gz", "rank1.json.gz"]


def test_the_command_in_run_json_gives_the_same_run(tmp_path):
    assert main(["simulate", *SMALL, "--seed", "3", "--out", str(tmp_path / "a" / "run")]) == 0
    command = json.loads((tmp_path / "a/run/run.json").read_text())["command"]
    assert command[:2] == ["moescope", "simulate"]
    assert main([*command[1:], "--out", str(tmp_path / "b" / "run")]) == 0
    first, again = (
        {p.relative_to(tmp_path / side): p.read_bytes() for p in (tmp_path / side).rglob("*") if p.is_file()}
        for side in "ab"
    )
    assert first == again


def test_replaces_a_simulated_run_only_when_told(tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["simulate", *SMALL, "--out", str(out)]) == 0
    assert main(["simulate", *SMALL, "--out", str(out)]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["simulate", *SMALL, "--seed", "1", "--force", "--out", str(out)]) == 0
    assert json.loads((out / "truth.json").read_text())["seed"] == 1


@pytest.mark.parametrize("run", [None, "{}", '{"basis": "measured"}', "not json"])
def test_never_replaces_anything_else(run, tmp_path, capsys):
    (tmp_path / "precious.txt").write_text("mine")
    if run is not None:
        (tmp_path / "run.json").write_text(run)
    assert main(["simulate", *SMALL, "--force", "--out", str(tmp_path)]) == 2
    assert "is not a run of moescope simulate" in capsys.readouterr().err
    assert (tmp_path / "precious.txt").read_text() == "mine"


def test_lists_every_fault(capsys):
    assert main(["simulate", "--list-faults"]) == 0
    said = capsys.readouterr().out
    assert all(kind().describe() in said for kind in KINDS.values())


def test_needs_somewhere_to_write(capsys):
    assert main(["simulate"]) == 2
    assert "--out" in capsys.readouterr().err


def test_errors_are_objects_with_json(tmp_path, capsys):
    assert main(["simulate", "--json", "--fault", "nonsense", "--out", str(tmp_path / "x")]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert answer["error"]["code"] == "bad-fault"
    assert "slow_rank" in answer["error"]["hint"]
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--tokens", "9" * 20],
        ["--ranks", "1000000"],
        ["--ranks-per-host", "9" * 20],
        ["--steps", "9" * 20],
        ["--microbatches", "9" * 20],
        ["--layers", "9" * 20],
        ["--experts", "9" * 20, "--ep", "1"],
        ["--seed", "9" * 20],
        ["--fault", "tiny_experts:factor=99999999"],
        *(["--fault", f"slow_rank:factor={factor}"] for factor in ("1e308", "1e-300", "nan", "inf", "-1", "x")),
        ["--fault", f"slow_rank:rank={'9' * 5000}"],
        ["--fault", "missing_ranks:ranks=²"],
    ],
)
def test_sizes_that_no_machine_simulates_are_refused_before_it_starts(arguments, tmp_path, capsys):
    assert main(["simulate", *arguments, "--out", str(tmp_path / "run")]) == 2
    assert "internal" not in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
