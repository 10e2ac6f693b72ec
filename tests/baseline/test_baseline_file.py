"""Reading a baseline, and what nccl-tests print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moescope.align.baseline import read_baseline
from moescope.align.nccltests import is_nccl_tests, nccl_tests_document, read_nccl_tests
from moescope.baseline.plan import Plan, PlanError, weights_of_run
from moescope.errors import InputUnreadableError

OUTPUT = """# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
# Using devices
#  Rank  0 Group  0 Pid  100 on node0 device  0 [0x1b] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid  101 on node0 device  1 [0x43] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    30.50   34.38   34.38      0    29.10   36.03   36.03      0
    67108864      16777216     float     sum      -1    480.0  139.81  139.81      0    470.0  142.78  142.78    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 85.0
"""


def exchange(collective: str, size: int, time_us: float, busbw: float) -> dict[str, Any]:
    return {"collective": collective, "size_bytes": size, "time_us": time_us, "busbw_gb_per_s": busbw}


def write(folder: Path, **given: Any) -> Path:
    document = {"schema": "moescope.baseline/1", "device": "CPU", "hosts": [{"host": "a"}]} | given
    file = folder / "baseline.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    return file


def test_rates_bandwidth_and_exchanges_are_read(tmp_path: Path) -> None:
    """100 us + S / 2 bytes to the other of two ranks at 10 GB/s."""
    products = [("bfloat16", 300.0), ("bfloat16", 700.0), ("float32", 20.0)]
    sizes = (1_000_000, 4_000_000, 16_000_000)
    rows = [(size, 100 + size / 2 / 10 / 1e3) for size in sizes]
    found = read_baseline(
        write(
            tmp_path,
            gemm=[{"dtype": dtype, "rate_tflops": rate} for dtype, rate in products],
            memory={"gb_per_s": 3000.0},
            collectives=[exchange("all_to_all", size, t, size / 2 / t / 1e3) for size, t in rows]
            + [exchange("all_reduce", 1, 1e9, 1.0)],
        )
    )
    assert found.flops_per_ns == {"bfloat16": 700_000.0, "float32": 20_000.0}
    assert found.memory_bytes_per_ns == 3000.0
    model = found.transfers["within host"]
    assert (model.alpha_ns, model.bytes_per_ns) == (pytest.approx(100_000, rel=1e-3), pytest.approx(10, rel=1e-3))


def test_across_hosts_only_what_leaves_the_host_counts(tmp_path: Path) -> None:
    rows = [exchange("all_to_all", size, size / 2 / 50 / 1e3, 1.0) for size in (1_000_000, 2_000_000, 4_000_000)]
    found = read_baseline(write(tmp_path, hosts=[{"host": "a"}, {"host": "b"}], collectives=rows))
    assert set(found.transfers) == {"across hosts"}
    assert found.transfers["across hosts"].bytes_per_ns == pytest.approx(50, rel=1e-3)


def test_a_baseline_without_exchanges_has_no_transfer_model(tmp_path: Path) -> None:
    assert read_baseline(write(tmp_path)).transfers == {}


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "other"}', '{"schema": "moescope.baseline/1", "gemm": [{}]}'])
def test_what_is_no_baseline_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "bad.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputUnreadableError):
        read_baseline(file)
    with pytest.raises(InputUnreadableError):
        read_baseline(tmp_path / "absent.json")


def test_output_of_nccl_tests_is_read(tmp_path: Path) -> None:
    file = tmp_path / "all_reduce.txt"
    file.write_text(OUTPUT, encoding="utf-8")
    rows = read_nccl_tests(file, "all_reduce")
    assert [(r["size_bytes"], r["in_place"], r["time_us"], r["busbw_gb_per_s"], r["wrong"]) for r in rows] == [
        (1_048_576, False, 30.5, 34.38, 0),
        (1_048_576, True, 29.1, 36.03, 0),
        (67_108_864, False, 480.0, 139.81, 0),
        (67_108_864, True, 470.0, 142.78, None),
    ]
    assert rows[0] | {"ranks": 2, "count": 262_144, "dtype": "float", "collective": "all_reduce"} == rows[0]


def test_output_that_names_its_test_needs_no_name(tmp_path: Path) -> None:
    file = tmp_path / "out.txt"
    line = "  1048576  131072  float  30.50  34.38  17.19  0  29.10  36.03  18.02  0\n"
    file.write_text("# Collective test starting: alltoall_perf\n" + line, encoding="utf-8")
    assert {row["collective"] for row in read_nccl_tests(file)} == {"all_to_all"}
    file.write_text(line, encoding="utf-8")
    with pytest.raises(InputUnreadableError, match="which collective"):
        read_nccl_tests(file)
    file.write_text("nothing\n", encoding="utf-8")
    with pytest.raises(InputUnreadableError, match="no line of results"):
        read_nccl_tests(file, "alltoall")


def test_the_files_name_may_say_the_collective_and_comments_the_ranks(tmp_path: Path) -> None:
    file = tmp_path / "node0_alltoall_perf.txt"
    file.write_text(
        "# NCCL version 2.27.3+cuda12.9\n"
        "#  Rank  0 Group  0 Pid  4242 on     node0 device  0 [0000:18:00] NVIDIA H100 80GB HBM3\n"
        "#  Rank  1 Group  0 Pid  4243 on     node1 device  0 [0000:18:00] NVIDIA H100 80GB HBM3\n"
        "  1048576  131072  float  30.50  34.38  17.19  0  29.10  36.03  18.02  0\n",
        encoding="utf-8",
    )
    assert is_nccl_tests(tmp_path / "absent.txt") is False
    found = nccl_tests_document(file)
    assert found["world_size"] == 2
    assert found["hosts"][1] == {
        "host": "node1", "devices": ["NVIDIA H100 80GB HBM3"], "versions": {"nccl": "2.27.3+cuda12.9"},
    }  # fmt: skip
    assert [row["collective"] for row in found["collectives"]] == ["all_to_all", "all_to_all"]
    file.write_text("# nThread 1 nGpus 8\n" + file.read_text(encoding="utf-8"), encoding="utf-8")
    assert is_nccl_tests(file)


@pytest.mark.parametrize(
    "model",
    [
        {"dim": 16, "moe": {"expert_hidden_dim": 32, "num_experts": 8}},
        {"hidden": 16, "expert_hidden": 32, "experts": 8},
    ],
)
def test_weights_are_those_of_a_run(tmp_path: Path, model: dict[str, Any]) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"model": model, "parallel": {"ep_size": 4}}), encoding="utf-8")
    assert weights_of_run(tmp_path) == (((32, 16), (16, 32), (16, 16)), 2)


@pytest.mark.parametrize("text", ["{}", "[]", '{"model": {"dim": "x"}}', '{"model": {}}'])
def test_a_run_without_a_model_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text, encoding="utf-8")
    with pytest.raises(PlanError, match="sizes of a model"):
        weights_of_run(tmp_path)
    with pytest.raises(PlanError):
        weights_of_run(tmp_path / "absent")


def test_plan_chooses_for_the_device_and_refuses_nonsense() -> None:
    assert Plan().resolved(on_gpu=True).dtype == "bfloat16"
    assert Plan(max_bytes=70_000).resolved(on_gpu=False).sizes() == (1024, 4096, 16384, 65536)
    for bad in (Plan(parts=("gpu",)), Plan(max_bytes=10), Plan(dtype="int4"), Plan(factor=1), Plan(rows=(0,))):
        with pytest.raises(PlanError):
            bad.check()
