"""HolisticTraceAnalysis beside us: equal figures, and every difference explained to its last digit.

Its rules on our events are tested everywhere. The tool itself runs where this Python has it (``moescope[hta]``), or the
one that MOESCOPE_HTA_PYTHON names; ``make test-hta`` sets one up.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from tiny_trace import TinyRank, write

from moescope.cli import main
from moescope.crosscheck import hta_rules
from moescope.crosscheck.hta import check_rank, cross_check, run_tool
from moescope.crosscheck.model import CrossCheck
from moescope.errors import DataMissingError, MoescopeError
from moescope.trace import open_directory

TRACES = Path(__file__).parents[3] / "shared/traces"
HERE = importlib.util.find_spec("hta") is not None
PYTHON = os.environ.get("MOESCOPE_HTA_PYTHON") or (sys.executable if HERE else "")
US = 1000

needs_tool = pytest.mark.skipif(not PYTHON, reason="needs HolisticTraceAnalysis: pip install 'moescope[hta]'")
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="needs the recorded traces in ../shared/traces")


def tiny(folder: Path, *, fraction_ns: int = 0) -> Path:
    """Two steps of 100 us: compute, a communication kernel under its tail, a copy, and a kernel without a launch."""
    rank = TinyRank(0, world_size=1, device="NVIDIA H100 80GB HBM3")
    for step in (0, 1):
        at = step * 100 * US
        rank.step(step, at, 100 * US)
        rank.kernel("gemm", at + 10 * US, 20 * US + fraction_ns, launched=at + 5 * US)
        rank.kernel("ncclDevKernel_SendRecv(x)", at + 25 * US, 15 * US, launched=at + 7 * US, stream=20)
        rank.kernel("elementwise", at + 60 * US, 10 * US, launched=at + 55 * US)
    rank.kernel("graphed", 80 * US, 5 * US)
    return write([rank], folder)


def staged(folder: Path) -> dict[str, hta_rules.Figures]:
    trace = open_directory(folder).ranks[0]
    stages, _ = hta_rules.stages(trace.events(), int(trace.info.get("baseTimeNanoseconds") or 0))
    return {stage.rule: stage.figures for stage in stages}


def test_each_rule_changes_what_it_says(tmp_path: Path) -> None:
    found = staged(tiny(tmp_path))
    assert set(found) == {"", "unlinked", "last step"}
    # both steps: 10-40, 60-70 and 80-85, then 110-140 and 160-170
    assert found[""] == hta_rules.Figures(160, 75, 65, 20, pytest.approx(100 / 3))
    assert found["unlinked"] == hta_rules.Figures(160, 80, 60, 20, pytest.approx(100 / 3))
    assert found["last step"] == hta_rules.Figures(60, 20, 30, 10, pytest.approx(100 / 3))


def test_rounding_drops_fractions_of_microseconds(tmp_path: Path) -> None:
    found = staged(tiny(tmp_path, fraction_ns=750))
    assert found["last step"].compute == 30.75
    assert found["rounding"].compute == 30


def test_idle_and_queue_of_each_stream(tmp_path: Path) -> None:
    trace = open_directory(tiny(tmp_path)).ranks[0]
    _, device = hta_rules.stages(trace.events(), int(trace.info.get("baseTimeNanoseconds") or 0))
    main_stream, second = sorted(hta_rules.idle_by_stream(device))
    idle = hta_rules.idle_by_stream(device)
    assert idle[main_stream] == {"host_wait": 30.0, "kernel_wait": 0.0, "other": 0.0}
    assert idle[second] == {"host_wait": 0.0, "kernel_wait": 0.0, "other": 0.0}
    assert hta_rules.queue_by_stream(device) == {main_stream: (0.5, 1), second: (0.5, 1)}


def test_what_the_tool_cannot_do_is_said(tmp_path: Path) -> None:
    trace = open_directory(tiny(tmp_path)).ranks[0]
    partial = {"version": "0", "temporal": None, "overlap_percent": None, "failed": {"temporal": "IndexError: x"}}
    check = check_rank(trace, partial, "")
    assert not check.agrees
    assert check.failed == {"temporal": "IndexError: x"}
    assert all(figure.unexplained is None for figure in check.figures)
    nothing = check_rank(trace, None, "HTA failed: killed")
    assert (nothing.error, nothing.figures, nothing.agrees) == ("HTA failed: killed", (), False)


def test_a_python_without_the_tool_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    directory = open_directory(tiny(tmp_path))
    with pytest.raises(MoescopeError, match="has no HolisticTraceAnalysis") as caught:
        cross_check(directory, str(tmp_path / "no-such-python"))
    assert "moescope[hta]" in caught.value.hint


def test_a_tool_that_dies_leaves_its_last_words(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho 'MemoryError: too much' >&2\nexit 3\n", encoding="utf-8")
    script.chmod(0o755)
    assert run_tool(str(script), tmp_path / "trace.json") == (None, "HTA failed: MemoryError: too much")


@needs_tool
def test_traces_without_a_device_are_refused(tmp_path: Path) -> None:
    rank = TinyRank(0, world_size=1)
    rank.op("aten::mm", 0, 100)
    with pytest.raises(DataMissingError, match="device events"):
        cross_check(open_directory(write([rank], tmp_path)), PYTHON)


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CrossCheck]:
    """The recorded folders, each checked once."""
    found = {}
    for name in ("a2a16_rank0", "b200_eager", "mi300_resnet_ckpt", "qwen3_moe_mi300_decode", "sampled_2_of_128"):
        folder = tmp_path_factory.mktemp("hta") / name
        shutil.copytree(TRACES / name, folder, ignore=shutil.ignore_patterns(".moescope"))
        found[name] = cross_check(open_directory(folder), PYTHON)
    return found


@needs_tool
@needs_traces
def test_every_difference_on_recorded_traces_is_explained(checked: dict[str, CrossCheck]) -> None:
    for name, check in checked.items():
        for rank in check.ranks:
            assert rank.error == "", name
            assert rank.agrees, (name, rank.figures)
            assert all(row.ours_us == row.theirs_us for row in rank.idle), name
    used = {name: set(check.ranks[0].rules) for name, check in checked.items()}
    assert used["a2a16_rank0"] == {"unlinked", "last step"}
    assert used["b200_eager"] == {"streams", "rounding"}
    assert used["mi300_resnet_ckpt"] == {"unlinked", "rounding"}


@needs_tool
@needs_traces
def test_where_the_tool_is_exact_we_agree_to_the_microsecond(checked: dict[str, CrossCheck]) -> None:
    """Whole microseconds and names it knows: after the steps it leaves out, its figures are ours."""
    rank = checked["a2a16_rank0"].ranks[0]
    figures = {figure.figure: figure for figure in rank.figures}
    assert all(figure.unexplained == 0 for figure in rank.figures if figure.unit == "us")
    assert (figures["compute"].ours, figures["compute"].theirs) == (210_998, 143_836)
    assert rank.critical_path_percent
    assert {row.stream for row in rank.queue} == {7, 25, 27, 84, 285, 363}


@needs_tool
def test_the_command_prints_both_and_the_json_holds_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tiny(tmp_path / "run")
    options = ["analyze", str(folder), "--cross-check", "hta", "--hta-python", PYTHON, "--no-cache"]
    assert main([*options, "--json"]) == 0
    check = json.loads(capsys.readouterr().out)["cross_check"]
    assert check["ranks"][0]["figures"][0]["theirs"] is not None
    assert main(options) == 0
    text = capsys.readouterr().out
    assert "Cross-check with HolisticTraceAnalysis" in text
    assert "last step is dropped" in text
