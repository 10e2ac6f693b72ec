"""``moescope analyze``: the options reach the analysis, the answer reaches stdout, the exit code says what holds."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from analysis_fixture import HOSTILE, bare, example
from rich.console import Console

from moescope.cli import main
from moescope.cli.failon import met_conditions
from moescope.cli.tables import COLUMNS, grouped, mean_by_rank, ranks_to_show
from moescope.cli.text import printable
from moescope.cli.verdict import print_analysis
from moescope.findings.codes import FINDING_CODES, SEVERITIES
from moescope.views.json import EXTRA_SECTIONS, to_json
from moescope.views.links import numbers
from moescope.views.model import RankStep


@pytest.fixture
def analysed(monkeypatch):
    """Make the command analyse the fixture instead of a folder; return what it was called with."""
    calls = []

    def analyze(path, **options):
        calls.append((path, options))
        options["progress"](1, 1, "rank0")
        return example()

    monkeypatch.setitem(sys.modules, "moescope.views.build", SimpleNamespace(analyze=analyze))
    return calls


def text_of(analysis) -> str:
    stream = io.StringIO()
    print_analysis(analysis, Console(file=stream, width=100, highlight=False, markup=False, emoji=False))
    return stream.getvalue()


def test_options_reach_the_analysis(analysed):
    options = ["--hosts", "0-1,2-3", "--rank-regex", r"(\d+)", "--workers", "3", "--no-cache"]
    options += ["--baseline", "machines.json"]
    assert main(["analyze", "runs/x", *options]) == 0
    path, options = analysed[0]
    assert path == Path("runs/x")
    options.pop("progress")
    expected = {"hosts": ((0, 1), (2, 3)), "rank_regex": r"(\d+)", "workers": 3, "cache": False}
    assert options == expected | {"baseline": Path("machines.json")}


def test_defaults(analysed):
    assert main(["analyze", "runs/x"]) == 0
    analysed[0][1].pop("progress")
    assert analysed[0][1] == {"hosts": None, "rank_regex": None, "workers": None, "cache": True, "baseline": None}


def test_large_waits_without_a_reason_are_not_passed_over():
    analysis = example()
    small = replace(analysis.causes[0], cause="unexplained", rank=3, share_of_step=0.019)
    assert "Not explained" not in text_of(replace(analysis, causes=(small,)))
    large = replace(small, share_of_step=0.021, cost_ns_per_step=4_000_000)
    assert "Not explained: the others wait 4.00 ms/step, 2.1 %, for rank 3" in text_of(
        replace(analysis, causes=(large,))
    )


def test_explain_prints_every_number_behind_every_finding(analysed, capsys):  # noqa: ARG001
    assert main(["analyze", "runs/x"]) == 0
    brief = " ".join(capsys.readouterr().out.split())
    assert main(["analyze", "runs/x", "--explain"]) == 0
    full = " ".join(capsys.readouterr().out.split())
    for finding in example().findings:
        for label, value in numbers(finding):
            line = " ".join(printable(f"{label}: {value}").split())
            assert line in full
            assert line not in brief
    assert "on the timeline: " in full


def test_json_is_one_object_with_the_sections_asked_for(analysed, capsys):  # noqa: ARG001
    assert main(["analyze", "runs/x", "--json", "--with", "collectives,load"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == to_json(example(), ("collectives", "load"))
    assert answer["ok"] is True
    assert answer["schema"] == "moescope.analysis/1"
    assert "memory" not in answer


@pytest.mark.parametrize(
    ("conditions", "exit_code"),
    [
        ([], 0),
        (["load-imbalance"], 5),
        (["slow-rank"], 0),
        (["slow-rank", "memory-peak"], 5),
        (["warning"], 5),
        (["critical"], 5),
        (["nonsense"], 2),
        (["info"], 2),
    ],
)
def test_fail_on(analysed, capsys, conditions, exit_code):  # noqa: ARG001
    args = [part for condition in conditions for part in ("--fail-on", condition)]
    assert main(["analyze", "runs/x", "--json", *args]) == exit_code
    out, err = capsys.readouterr()
    assert json.loads(out)["ok"] is (exit_code != 2)
    assert ("holds" in err) is (exit_code == 5)


GRADES = [("good", []), ("info", []), ("warning", ["warning"]), ("critical", ["warning", "critical"])]


@pytest.mark.parametrize(("severity", "met"), GRADES)
def test_a_grade_stands_for_itself_and_what_is_graver(severity, met):
    finding = replace(example().findings[0], severity=severity)
    assert [condition for condition, _ in met_conditions([finding], ["warning", "critical"])] == met


def test_text_opens_with_the_verdict_and_ends_with_the_next_command(analysed, capsys):  # noqa: ARG001
    assert main(["analyze", "runs/x"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "\x1b" not in out
    words = ("Verdict", "load-imbalance", "Step by rank", "Waits", "Clocks", "Load", "Missing")
    order = [out.index(word) for word in words]
    assert order == sorted(order)
    assert out.rstrip().splitlines()[-1].startswith("moescope serve ")


@pytest.mark.parametrize("analysis", [example(), example(64), example(1, 1, 12), bare()], ids=["4", "64", "1", "bare"])
def test_text_fits_100_columns_and_two_screens(analysis):
    lines = text_of(analysis).splitlines()
    assert max(map(len, lines)) <= 100
    assert len(lines) <= 80


def test_large_run_shows_the_hot_rank_and_a_summary():
    text = text_of(example(64))
    table = text[text.index("Step by rank") : text.index("Waits")]
    first_words = [line.split()[0] for line in table.splitlines() if line.strip()]
    assert {"2", "mean", "min", "max"} <= set(first_words)
    assert "of 64 ranks" in table


def test_columns_of_a_step_sum_to_its_window():
    row: RankStep = example().ranks[0]
    assert sum(grouped(row.parts_ns).values()) == row.window_ns
    assert sum(grouped({**row.parts_ns, "new.part": 7}).values()) == row.window_ns + 7
    assert grouped({"new.part": 7})["rest"] == 7


def test_means_over_steps():
    analysis = example(2, 2)
    means = mean_by_rank(analysis)
    windows = [row.window_ns for row in analysis.ranks if row.rank == 1]
    assert means[1]["step"] == sum(windows) / 2
    assert sum(means[1][heading] for heading, _ in COLUMNS) == pytest.approx(means[1]["step"])


def test_ranks_of_a_large_run_are_those_named_the_latest_and_the_longest_waiting():
    means = {rank: {"a2a\nwait": float(rank), "other\nwait": 0.0} for rank in range(40)}
    assert ranks_to_show(means, [20, 99]) == [0, 1, 2, 3, 20, 36, 37, 38, 39]
    few = {rank: means[rank] for rank in range(12)}
    assert ranks_to_show(few, []) == list(range(12))


def test_hostile_names_are_text():
    finding = replace(example().findings[0], claim="\x1b[31m[bold]x[/bold] :smile: [/]", code="load-imbalance")
    text = text_of(replace(example(), findings=(finding,), name=f"{HOSTILE}\x1b]0;title\x07"))
    assert "\x1b" not in text
    assert "\\x1b[31m[bold]x[/bold] :smile: [/]" in text
    assert HOSTILE in text


def test_json_holds_every_field_of_the_model_and_no_number_json_lacks():
    analysis = example()
    answer = to_json(analysis, EXTRA_SECTIONS)
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    for section in ("steps", "ranks", "waits", "causes", "findings", "missing", "collectives"):
        kind = type(getattr(analysis, section)[0])
        assert next(list(row) for row in answer[section]) == [field.name for field in fields(kind)]
    assert all(sum(row["parts_ns"].values()) == row["window_ns"] for row in answer["ranks"])


def test_json_of_numbers_that_are_not_finite_is_null():
    finding = replace(example().findings[0], share_of_step=float("nan"), evidence={"r": float("inf"), "n": [1.5, None]})
    row = to_json(replace(example(), findings=(finding,)))["findings"][0]
    assert row["share_of_step"] is None
    assert row["evidence"] == {"r": None, "n": [1.5, None]}


def test_json_refuses_an_unknown_section():
    with pytest.raises(ValueError, match="nonsense"):
        to_json(example(), ["nonsense"])


def test_codes_are_kebab_case_and_severities_ordered():
    assert all(code == code.lower() and " " not in code for code in FINDING_CODES)
    assert SEVERITIES.index("warning") < SEVERITIES.index("critical")
