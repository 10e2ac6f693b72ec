"""Two baselines side by side, through the command."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from moescope.cli import main
from moescope.errors import ExitCode
from moescope.views.compare.baseline import (
    BaselineComparison,
    FigureChange,
    LaggingRank,
    SettingChange,
    compare_baselines,
    topology_links,
)


def document() -> dict[str, Any]:
    product = {"kind": "gemm", "dtype": "bfloat16", "groups": 1, "rows": 64, "n": 8, "k": 4, "rate_tflops": 500.0}
    exchange = {"collective": "all_to_all", "size_bytes": 1024, "in_place": False, "busbw_gb_per_s": 40.0, "wrong": 0}
    host = {"host": "node0", "driver": "570.1", "versions": {"nccl": "2.27"}, "settings": {}, "topology": "NV18"}
    return {
        "schema": "moescope.baseline/1",
        "world_size": 3,
        "backend": "nccl",
        "device": "NVIDIA H100",
        "ranks": [{"rank": rank, "host": "node0"} for rank in range(3)],
        "hosts": [host],
        "gemm": [product | {"by_rank_ns": [100.0, 101.0, 102.0]}],
        "collectives": [exchange],
        "memory": {"gb_per_s": 3000.0},
        "copies": [],
        "launch": {"launch_ns": 4000.0, "round_trip_ns": 9000.0},
    }


def compared(tmp_path: Path, after: dict[str, Any]) -> BaselineComparison:
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file, content in zip(files, (document(), after), strict=True):
        file.write_text(json.dumps(content), encoding="utf-8")
    return compare_baselines(*files)


def test_equal_baselines_have_no_difference(tmp_path: Path) -> None:
    found = compared(tmp_path, document())
    assert (found.num_figures, found.figures, found.lagging, found.settings, found.wrong) == (5, (), (), (), ())


def test_figures_are_listed_worst_first_from_ten_percent(tmp_path: Path) -> None:
    after = document()
    after["collectives"][0]["busbw_gb_per_s"] = 20.0
    after["memory"]["gb_per_s"] = 2701.0
    after["launch"] = {"launch_ns": 8000.0, "round_trip_ns": 4500.0}
    assert compared(tmp_path, after).figures == (
        FigureChange("launch", "ns", 4000.0, 8000.0, 1.0, False),
        FigureChange("all_to_all 1024 B out of place", "GB/s", 40.0, 20.0, -0.5, False),
        FigureChange("launch and wait", "ns", 9000.0, 4500.0, -0.5, True),
    )


def test_a_lagging_rank_is_named_with_its_host(tmp_path: Path) -> None:
    after = document()
    after["gemm"][0]["by_rank_ns"] = [100.0, 100.0, 130.0]
    assert compared(tmp_path, after).lagging == (LaggingRank(2, "node0", 102.0 / 101.0, 1.3),)


def test_versions_settings_links_and_hosts_are_told_apart(tmp_path: Path) -> None:
    after = document()
    after["hosts"][0] |= {"host": "node7", "versions": {"nccl": "2.28"}, "settings": {"NCCL_IB_HCA": "mlx5"}}
    found = compared(tmp_path, after)
    assert found.settings == (
        SettingChange("node7", "host", "node0", "node7"),
        SettingChange("node7", "settings.NCCL_IB_HCA", None, "mlx5"),
        SettingChange("node7", "versions.nccl", "2.27", "2.28"),
    )
    after["hosts"].append(deepcopy(after["hosts"][0]) | {"host": "node8"})
    assert compared(tmp_path, after).settings == (
        SettingChange("hosts", "host", "node0", None),
        SettingChange("hosts", "host", None, "node7"),
        SettingChange("hosts", "host", None, "node8"),
    )


def test_the_command_compares_baselines_as_text_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    after = document()
    after["collectives"][0]["wrong"] = 7
    after["hosts"][0]["topology"] = "PIX"
    compared(tmp_path, after)
    paths = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    assert main(["compare", *paths]) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert "WRONG RESULT in B: all_to_all 1024 B" in shown
    assert "node0 topology: NV18 -> PIX" in shown
    assert main(["compare", *paths, "--json"]) == ExitCode.DONE
    answer = json.loads(capsys.readouterr().out)
    assert (answer["schema"], answer["wrong"]) == ("moescope.baseline-comparison/1", ["all_to_all 1024 B"])


def test_a_baseline_is_compared_with_baselines_alone(tmp_path: Path) -> None:
    compared(tmp_path, document())
    other = tmp_path / "trace.json"
    other.write_text('{"traceEvents": []}', encoding="utf-8")
    assert main(["compare", str(tmp_path / "a.json"), str(other)]) == ExitCode.UNREADABLE
    paths = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    assert main(["compare", *paths, "--fail-on", "step_ns+5%"]) == ExitCode.USAGE


MATRIX = """
\tGPU0\tGPU1\tNIC0\tCPU Affinity
GPU0\t X \tNV18\tPXB\t0-55
GPU1\t{}\t X \t{}\t0-55
NIC0\tPXB\t{}\t X \t
"""


def test_links_of_the_topology_are_compared_one_by_one(tmp_path: Path) -> None:
    assert dict(topology_links(MATRIX.format("NV18", "SYS", "SYS"))) == {
        "link GPU0-GPU1": "NV18", "link GPU0-NIC0": "PXB", "link GPU1-NIC0": "SYS",
    }  # fmt: skip
    a, b = document(), document()
    a["hosts"][0]["topology"] = MATRIX.format("NV18", "PXB", "PXB")
    b["hosts"][0]["topology"] = MATRIX.format("NV18", "SYS", "SYS")
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file, content in zip(files, (a, b), strict=True):
        file.write_text(json.dumps(content), encoding="utf-8")
    assert compare_baselines(*files).settings == (SettingChange("node0", "link GPU1-NIC0", "PXB", "SYS"),)


def test_a_rank_with_slow_memory_or_copies_lags_too(tmp_path: Path) -> None:
    after = document()
    after["memory"] = {"gb_per_s": 3000.0, "by_rank_gb_per_s": [3000.0, 1500.0, 3000.0]}
    assert compared(tmp_path, after).lagging == (LaggingRank(1, "node0", None, 2.0, "memory"),)


def nccl_output(version: str, host: str, time_us: str, busbw: str) -> str:
    return (
        "# nThread 1 nGpus 1 minBytes 1048576\n# Collective test starting: alltoall_perf\n"
        f"# NCCL version {version}\n"
        "#  Rank  0 Group  0 Pid  1 on  node0 device  0 [0000:18:00] NVIDIA H100\n"
        f"#  Rank  1 Group  0 Pid  2 on  {host} device  0 [0000:18:00] NVIDIA H100\n"
        f"  1048576  131072  float  none  -1  {time_us}  34.38  {busbw}  0  {time_us}  34.38  {busbw}  0\n"
    )


def test_two_outputs_of_nccl_tests_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    outputs = (nccl_output("2.27.3", "node1", "30.5", "17.2"), nccl_output("2.28.0", "node9", "61.0", "8.6"))
    for file, text in zip(files, outputs, strict=True):
        file.write_text(text, encoding="utf-8")
    found = compare_baselines(*files)
    assert [change.relative for change in found.figures] == [-0.5, -0.5]
    assert found.settings == (
        SettingChange("node0", "versions.nccl", "2.27.3", "2.28.0"),
        SettingChange("node9", "host", "node1", "node9"),
        SettingChange("node9", "versions.nccl", "2.27.3", "2.28.0"),
    )
    assert main(["compare", *map(str, files)]) == ExitCode.DONE
    assert "all_to_all 1048576 B in place: 17.2 -> 8.6 GB/s" in capsys.readouterr().out
