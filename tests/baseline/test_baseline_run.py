"""A small baseline on two local ranks, through the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moescope.align.baseline import read_baseline
from moescope.cli import main
from moescope.errors import ExitCode

SMALL = ["--rows", "4,8", "--shape", "16x8", "--groups", "2", "--max-bytes", "16384", "--seconds", "0.001"]


@pytest.mark.slow
def test_two_ranks_measure_everything_and_get_the_sums_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "baseline.json"
    assert main(["baseline", "--ranks", "2", "--out", str(out), *SMALL]) == ExitCode.DONE
    shown = capsys.readouterr().out
    found = json.loads(out.read_text(encoding="utf-8"))
    assert f"Wrote {out}" in shown
    assert "busbw" in shown

    collectives = found["collectives"]
    assert {row["collective"] for row in collectives} == {
        "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_allv",
    }  # fmt: skip
    assert [row for row in collectives if row["wrong"]] == []
    for row in collectives:
        factor = {"all_reduce": 1.0, "all_to_allv": 2 / 3}.get(row["collective"], 0.5)
        assert row["busbw_gb_per_s"] == pytest.approx(factor * row["algbw_gb_per_s"])
        assert row["algbw_gb_per_s"] == pytest.approx(row["size_bytes"] / row["time_us"] / 1e3)

    singles = [row for row in found["gemm"] if row["kind"] == "gemm"]
    assert [(row["rows"], row["n"], row["k"]) for row in singles] == [(4, 16, 8), (8, 16, 8)]
    assert all(len(row["by_rank_ns"]) == 2 for row in found["gemm"])
    assert singles[0]["rate_tflops"] == pytest.approx(2 * 4 * 16 * 8 / singles[0]["time_ns"] / 1e3)
    assert found["memory"]["gb_per_s"] > 0
    assert [row["rank"] for row in found["ranks"]] == [0, 1]
    assert found["hosts"][0]["num_cpus"] >= 1
    baseline = read_baseline(out)
    assert set(baseline.flops_per_ns) == {"float32"}
    assert set(baseline.transfers) == {"within host"}


def test_a_file_that_is_there_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "baseline.json"
    out.write_text("{}", encoding="utf-8")
    assert main(["baseline", "--out", str(out)]) == ExitCode.USAGE
    assert out.read_text(encoding="utf-8") == "{}"


@pytest.mark.parametrize("arguments", [["--shape", "16"], ["--rows", "a"], ["--only", "gpu"], ["--dtype", "int4"]])
def test_nonsense_is_refused_before_anything_starts(tmp_path: Path, arguments: list[str]) -> None:
    assert main(["baseline", "--out", str(tmp_path / "b.json"), *arguments]) == ExitCode.USAGE
