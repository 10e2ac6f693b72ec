"""Every folder of recorded traces, against figures computed from the files by other means."""

import json
from pathlib import Path

import polars as pl
import pytest

from moescope.trace import RankTrace, open_directory

TRACES = Path(__file__).parents[3] / "shared" / "traces"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="the folder of recorded traces is absent")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def union_ns(intervals: pl.DataFrame) -> int:
    total, reached = 0, -(2**63)
    for start, end in intervals.sort("start").iter_rows():
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def unions(trace: RankTrace) -> dict[str, float]:
    events = trace.events(["start_ns", "dur_ns", "kind"], categories=["kernel", "copy", "memset"])
    events = events.select("kind", start="start_ns", end=pl.col("start_ns") + pl.col("dur_ns"))
    by = {
        name: events.filter(pl.col("kind").is_in(kinds)).select("start", "end")
        for name, kinds in (("compute", ["compute"]), ("comm", ["communication", "wait"]), ("mem", ["copy"]))
    }
    busy = union_ns(events.select("start", "end"))
    total = events["end"].max() - events["start"].min()  # type: ignore[operator]
    return {
        "total_us": total,
        "busy_us": busy,
        "idle_us": total - busy,
        "compute_us": union_ns(by["compute"]),
        "comm_us": union_ns(by["comm"]),
        "comm_exposed_us": union_ns(pl.concat([by["comm"], by["compute"]])) - union_ns(by["compute"]),
        "mem_us": union_ns(by["mem"]),
        "n_comp": by["compute"].height,
        "n_comm": by["comm"].height,
    }


@pytest.mark.parametrize(
    "folder",
    ["dlrm8", "a2a16_rank0", "b200_eager", "mi300_resnet_ckpt", "qwen3_moe_mi300_decode", "sampled_2_of_128"],
)
def test_device_unions_are_those_of_the_file(folder: str) -> None:
    expected = json.loads((TRACES / "expected_gpu_unions.json").read_text())["ranks"]
    for trace in open_directory(TRACES / folder).ranks:
        want = expected[f"{folder}/{trace.file}"]
        for name, got in unions(trace).items():
            scale = 1000 if name.endswith("_us") else 1
            # The expected figures are sums of float64 microseconds: up to 48 ns off the decimal sum over 3,653 events.
            assert got == pytest.approx(want[name] * scale, rel=1e-6, abs=60), (trace.file, name)


@pytest.mark.parametrize("folder", sorted(p.name for p in (TRACES / "malformed").glob("*")))
def test_broken_packaging_is_read(folder: str) -> None:
    directory = open_directory(TRACES / "malformed" / folder)
    spans = sorted(unions(trace)["total_us"] for trace in directory.ranks)
    if folder in ("truncated", "duplicate_rank"):
        assert 18_749_000 in spans
        assert any(problem.loses_data for problem in directory.problems)
    else:
        assert spans == [13_009_000, 18_749_000]
        assert not any(problem.loses_data for problem in directory.problems)


def test_gloo_ranks_hosts_groups_and_memory() -> None:
    ranks = open_directory(TRACES / "gloo_moe_ep4").ranks
    assert [trace.rank for trace in ranks] == [0, 1, 2, 3]
    assert {trace.host for trace in ranks} == {"vm"}
    assert {group.description: group.ranks for group in ranks[3].groups.values()} == {
        "default_pg": (0, 1, 2, 3),
        "ep": (0, 1, 2, 3),
        "dp1": (2, 3),
    }
    assert ranks[0].memory().height == 456
    assert ranks[0].device == "CPU"


def test_two_claims_of_one_rank_name_the_file_left_out() -> None:
    directory = open_directory(TRACES / "malformed" / "duplicate_rank")
    (problem,) = [p for p in directory.problems if p.code == "duplicate-rank"]
    assert problem.file == "rank0_trace.json.gz"
    assert "rank1_trace.json.gz is kept" in problem.effect
