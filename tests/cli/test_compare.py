"""``moescope compare``: differences, the noise between steps, and conditions for CI."""

from __future__ import annotations

import io
import json
import math
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from analysis_fixture import bare, example
from rich.console import Console

from moescope.cli import main
from moescope.cli.comparison import print_comparison
from moescope.views.compare import change, compare, differing_settings, samples
from moescope.views.compare.text import metric_name
from moescope.views.model import TelemetryStep


def skewed_and_calm():
    """The example, and the same run without its hot rank's findings and with shorter steps."""
    a = example()
    steps = tuple(replace(step, window_ns=step.window_ns // 2) for step in a.steps)
    train = {**a.provenance, "train": {"lr": 0.1}, "result": {"validation_loss": 2.0, "note": "x", "best": True}}
    return a, replace(a, name="calm", steps=steps, findings=a.findings[1:], provenance=train)


@pytest.fixture
def runs(monkeypatch):
    by_name = dict(zip("ab", skewed_and_calm(), strict=True))
    module = SimpleNamespace(analyze=lambda path, **_: by_name[path.name])
    monkeypatch.setitem(sys.modules, "moescope.views.build", module)


def changes(a, b):
    return {change.metric: change for change in compare(a, b).changes}


def test_change_within_the_noise_of_steps_is_none():
    assert change("step_ns", [100, 110], [104, 114]).verdict == "within noise"
    moved = change("step_ns", [100, 102], [200, 202])
    assert moved.verdict == "worse"
    assert (moved.difference, moved.relative) == (100, 100 / 101)
    assert moved.noise == pytest.approx(2 * math.sqrt(2 / 2 + 2 / 2))


@pytest.mark.parametrize(
    ("metric", "a", "b", "verdict"),
    [
        ("step_ns", [10], [10], "same"),
        ("step_ns", [10], [9], "better"),
        ("tokens_per_s", [10], [9], "worse"),
        ("validation_loss", [2.0], [1.9], "better"),
        ("part_ns:compute.attention", [10], [9], "changed"),
        ("part_ns:idle.sync", [10], [9], "better"),
        ("total_params", [10], [9], "changed"),
        ("step_ns", [], [9], "unknown"),
        ("step_ns", [9], [], "unknown"),
    ],
)
def test_which_way_is_better(metric, a, b, verdict):
    assert change(metric, a, b).verdict == verdict


def test_single_values_have_no_noise_band():
    assert change("maxvio_rank", [0.5], [0.7]).noise is None
    assert change("step_ns", [0], [5]).relative is None


def test_run_against_itself_differs_in_nothing():
    run = example()
    comparison = compare(run, run)
    assert {change.verdict for change in comparison.changes} == {"same"}
    assert (comparison.new_findings, comparison.gone_findings, comparison.settings) == ((), (), ())


def test_parts_of_a_step_are_means_over_ranks_and_sum_to_the_mean_window():
    run = example(3, 2)
    parts = {name: values for name, values in samples(run).items() if name.startswith("part_ns:")}
    windows = [sum(row.window_ns for row in run.ranks if row.step == step.step) / 3 for step in run.steps]
    assert [sum(values) for values in zip(*parts.values(), strict=True)] == pytest.approx(windows)


def test_findings_and_settings_that_differ():
    a, b = skewed_and_calm()
    comparison = compare(a, b)
    assert [finding.code for finding in comparison.gone_findings] == [a.findings[0].code]
    assert comparison.new_findings == ()
    assert [(setting.name, setting.a, setting.b) for setting in comparison.settings] == [("train.lr", None, 0.1)]
    assert changes(a, b)["step_ns"].relative == pytest.approx(-0.5)
    assert changes(a, b)["validation_loss"].verdict == "unknown"
    assert "best" not in changes(a, b)


def test_a_run_with_nothing_to_compare_is_said_so():
    empty = replace(bare(), steps=(), ranks=())
    stream = io.StringIO()
    print_comparison(compare(empty, empty), Console(file=stream, width=100, markup=False))
    assert "share no step" in stream.getvalue()


def test_text_fits_and_says_the_answer_first(runs, capsys):  # noqa: ARG001
    assert main(["compare", "a", "b"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100
    assert "shorter (-50.0 %)" in out
    assert "\x1b" not in out
    assert out.index("B's step is") < out.index("Gone in B") < out.index("Settings that differ")


def test_json(runs, capsys):  # noqa: ARG001
    assert main(["compare", "a", "b", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["schema"], answer["ok"]) == ("moescope.comparison/1", True)
    assert next(c for c in answer["changes"] if c["metric"] == "step_ns")["verdict"] == "better"


@pytest.mark.parametrize(
    ("order", "condition", "exit_code"),
    [
        ("ab", "step_ns+5%", 0),
        ("ba", "step_ns+5%", 5),
        ("ba", "step_ns+150%", 0),
        ("ab", "step_ns-20%", 5),
        ("ab", "load-imbalance", 0),
        ("ba", "load-imbalance", 5),
        ("ab", "nonsense", 2),
        ("ab", "mfu-5%", 4),
    ],
)
def test_fail_on(runs, capsys, order, condition, exit_code):  # noqa: ARG001
    assert main(["compare", *order, "--json", "--fail-on", condition]) == exit_code
    assert json.loads(capsys.readouterr().out)["ok"] is (exit_code in (0, 5))


def with_losses(run, losses):
    """The run with a step of 10 ns and 100 tokens per loss."""
    steps = tuple(TelemetryStep(i, 10 * i, 10, 100, loss, None, None, False) for i, loss in enumerate(losses))
    return replace(run, telemetry=steps)


def test_time_and_tokens_are_compared_at_the_lowest_loss_that_both_reach():
    """Means of five steps: A is at 4 from its 5th step on, B below 4 from its 9th (8 -> 6.8 -> 5.6 -> 4.4 -> 3.2)."""
    a, b = skewed_and_calm()
    found = changes(with_losses(a, [4.0] * 10), with_losses(b, [8.0] * 5 + [2.0] * 5))
    assert found["shared_loss"].a == found["shared_loss"].b == 4.0
    assert (found["time_to_shared_loss_ns"].a, found["time_to_shared_loss_ns"].b) == (50, 90)
    assert (found["tokens_to_shared_loss"].a, found["tokens_to_shared_loss"].b) == (500, 900)
    assert found["tokens_to_shared_loss"].verdict == "worse"


def test_a_loss_that_only_one_run_reaches_is_unknown_for_the_other():
    a, b = skewed_and_calm()
    comparison = compare(with_losses(a, [4.0] * 10), with_losses(b, [2.0] * 10), to_loss=3.0)
    reached = next(change for change in comparison.changes if change.metric == "time_to_shared_loss_ns")
    assert (reached.a, reached.b, reached.verdict) == (None, 50, "unknown")


def test_losses_of_domains_are_compared_one_by_one():
    a, _ = skewed_and_calm()
    result = {"validation_loss_by_domain": {"code": 2.0, "prose": 3.0}, "restarts": 1}
    found = samples(replace(a, provenance={"result": result}))
    assert (found["validation_loss:code"], found["validation_loss:prose"]) == ([2.0], [3.0])
    assert found["restarts"] == [1.0]


def other_kind(**changes):
    return replace(example(), **changes)


@pytest.mark.parametrize(
    ("b", "said"),
    [
        (other_kind(basis="measured"), "A is simulated, B measured."),
        (other_kind(sources=tuple(replace(s, device="CPU") for s in example().sources)), "B on CPU."),
        (other_kind(world_size=64), "A has 4 ranks, B 64 ranks."),
        (other_kind(sources=example().sources[:2]), "A of 0–3, B of 0–1."),
    ],
)
def test_runs_of_another_kind_are_told_before_any_figure(b, said):
    comparison = compare(example(), b)
    out = io.StringIO()
    print_comparison(comparison, Console(file=out, width=200))
    head, _, _ = out.getvalue().partition("B's step is")
    assert "differ in kind" in head
    assert said in head
    assert compare(example(), example()).misfits == ()


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        ("part_ns:comm.all_to_all.wait_removable", "all-to-all wait removable"),
        ("part_ns:compute.expert_gemm", "expert GEMM"),
        ("part_ns:idle.host_launch", "idle: host launch"),
        ("removable_wait_ns", "removable wait"),
        ("peak_allocated_bytes", "peak allocated"),
        ("maxvio_rank", "MaxVio rank"),
    ],
)
def test_metrics_have_names_for_people(metric, name):
    assert metric_name(metric) == name


def test_numbers_of_processes_are_no_settings():
    a = {"devices": [{"rank": 0, "name": "CPU", "pid": 11}]}
    assert list(differing_settings(a, {"devices": [{"rank": 0, "name": "CPU", "pid": 12}]})) == []
    (setting,) = differing_settings(a, {"devices": [{"rank": 0, "name": "H100", "pid": 11}]})
    assert setting.name == "devices"
