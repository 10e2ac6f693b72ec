"""A run held against a baseline: the products' reference, and exchanges that take far longer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_trace import TinyRank, write

import moescope
from moescope.cli import main
from moescope.errors import ExitCode, InputUnreadableError
from moescope.findings.model import Finding
from moescope.views.build import analyze
from moescope.views.model import Analysis

US = 1000
ROWS = 1000
"""Rows of 8 bytes to the other rank."""


def run(tmp_path: Path, *, exchange_us: int) -> Path:
    """Two ranks, two steps of 1 ms: one large product, and an even exchange that all enter together."""
    ranks = [TinyRank(number, world_size=2, device="A GPU of tomorrow") for number in (0, 1)]
    for rank in ranks:
        for step in (0, 1):
            at = step * 1000 * US
            rank.step(step, at, 1000 * US)
            dims = {"Input Dims": [[2048, 1024], [1024, 1024]], "Input type": ["c10::BFloat16"] * 2}
            rank.op("aten::mm", at + 1 * US, 100, **dims)
            rank.kernel("gemm", at + 10 * US, 100 * US, launched=at + 1 * US + 10)
            rows = [5, ROWS] if rank.rank == 0 else [ROWS, 5]
            rank.exchange(at + 200 * US, exchange_us * US, sent=rows, received=rows, seq=step)
            rank.kernel("end", at + 990 * US, 10 * US, launched=at + 900 * US)
    return write(ranks, tmp_path / "run")


def baseline(tmp_path: Path) -> Path:
    """10 us + bytes / (1 GB/s): 18 us for the exchange above; products at 100 TFLOP/s."""
    sizes = [2_000, 20_000, 200_000]
    rows = [
        {"collective": "all_to_all", "size_bytes": size, "time_us": 10 + size / 2e3}
        | {"busbw_gb_per_s": size / 2 / (10 + size / 2e3) / 1e3}
        for size in sizes
    ]
    products = [{"dtype": "bfloat16", "rate_tflops": 100.0}]
    file = tmp_path / "baseline.json"
    document = {"schema": "moescope.baseline/1", "device": "A GPU of tomorrow", "hosts": [{"host": "node0"}]}
    file.write_text(json.dumps(document | {"gemm": products, "collectives": rows}), encoding="utf-8")
    return file


def network(folder: Path, file: Path | None) -> Finding | None:
    found = {f.code: f for f in analyze(folder, baseline=file, cache=False).findings}
    return found.get("slow-network")


def test_exchanges_far_below_the_baseline_are_reported(tmp_path: Path) -> None:
    finding = network(run(tmp_path, exchange_us=118), baseline(tmp_path))
    assert finding is not None
    assert finding.cost_ns_per_step == pytest.approx(100_000, rel=0.01)
    assert finding.evidence["times_the_baseline"] == pytest.approx(118 / 18, rel=0.01)
    assert list(finding.evidence["likely_reasons"]) == ["messages too small for the bandwidth"]  # 10 of 18 us


def test_a_tenth_of_the_baselines_rate_is_what_sockets_carry(tmp_path: Path) -> None:
    finding = network(run(tmp_path, exchange_us=180), baseline(tmp_path))
    assert finding is not None
    assert "sockets instead of the fast transport" in finding.evidence["likely_reasons"]


def test_exchanges_near_the_baseline_or_without_one_are_not(tmp_path: Path) -> None:
    assert network(run(tmp_path, exchange_us=35), baseline(tmp_path)) is None
    assert network(run(tmp_path / "b", exchange_us=118), None) is None


def test_products_are_held_against_the_baseline(tmp_path: Path) -> None:
    folder = run(tmp_path, exchange_us=20)
    with_it = analyze(folder, baseline=baseline(tmp_path), cache=False).gemm
    assert with_it is not None
    assert [(ref.source, ref.rate_tflops) for ref in with_it.references] == [("baseline", 100.0)]
    flops = 2 * 2048 * 1024 * 1024
    assert with_it.other.loss_ns_per_step == 100 * US - round(flops / 100_000)


def test_the_api_takes_a_baseline(tmp_path: Path) -> None:
    opened = moescope.open(run(tmp_path, exchange_us=118), baseline=baseline(tmp_path), cache=False)
    assert "slow-network" in [finding.code for finding in opened.findings]


def test_a_stored_result_is_not_taken_for_one_with_a_baseline(tmp_path: Path) -> None:
    folder = run(tmp_path, exchange_us=20)
    for file in (None, baseline(tmp_path), None):
        gemm = analyze(folder, baseline=file).gemm
        assert gemm is not None
        expected = "best rate in the trace" if file is None else "baseline"
        assert [ref.source for ref in gemm.references] == [expected]


def test_the_command_takes_a_baseline_and_refuses_what_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run(tmp_path, exchange_us=118)
    options = ["--json", "--no-cache", "--baseline", str(baseline(tmp_path))]
    assert main(["analyze", str(folder), *options]) == ExitCode.DONE
    assert "slow-network" in [finding["code"] for finding in json.loads(capsys.readouterr().out)["findings"]]
    bad = tmp_path / "bad.json"
    bad.write_text("{}", encoding="utf-8")
    with pytest.raises(InputUnreadableError, match="no baseline"):
        analyze(folder, baseline=bad)


def test_report_and_export_take_a_baseline(tmp_path: Path) -> None:
    folder, file = run(tmp_path, exchange_us=118), str(baseline(tmp_path))
    page = tmp_path / "report.html"
    options = ["--no-cache", "--baseline", file]
    assert main(["report", str(folder), "-o", str(page), *options]) == ExitCode.DONE
    assert "times what the baseline" in page.read_text(encoding="utf-8")
    tables = tmp_path / "tables"
    assert main(["export", str(folder), "-o", str(tables), "--tables", "csv", "--no-trace", *options]) == ExitCode.DONE
    assert "slow-network" in (tables / "findings.csv").read_text(encoding="utf-8")


def test_serve_analyses_against_the_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, seen = run(tmp_path, exchange_us=118), []

    def serve(paths: list[Path], analyse: Callable[..., Analysis], *_: object, **__: object) -> None:
        seen.append(analyse(paths[0], lambda *_: None))

    monkeypatch.setattr("moescope_app.serving.serve", serve)
    assert main(["serve", str(folder), "--no-cache", "--baseline", str(baseline(tmp_path))]) == ExitCode.DONE
    assert "slow-network" in [finding.code for finding in seen[0].findings]
