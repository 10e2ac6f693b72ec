"""The operation behind idle time, and how work is launched."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_trace import BASE_NS, COMM, TinyRank, write

from moescope.attribution.idle_causes import AT_END, NO_OPERATION, PYTHON
from moescope.attribution.profile import RankProfile, profile_rank
from moescope.trace import open_directory

Row = tuple[str, str, str, int]


def profiled(rank: TinyRank, folder: Path) -> RankProfile:
    return profile_rank(open_directory(write([rank], folder)).ranks[0])


def causes(rank: TinyRank, folder: Path) -> list[Row]:
    """(kind, operation, detail, ns), those at the step's end left out."""
    found = profiled(rank, folder).idle_causes
    rows = found.select("kind", "operation", "detail", "ns").rows()
    return [row for row in rows if row[1] != AT_END]


@pytest.fixture
def rank() -> TinyRank:
    """A step of 100 us in which the device computes for the first 20."""
    rank = TinyRank(0, 1)
    rank.step(0, 0, 100_000)
    rank.kernel("work", 0, 20_000, launched=0)
    return rank


def test_the_operation_behind_item_is_named_with_its_copy(rank: TinyRank, tmp_path: Path) -> None:
    rank.annotate("moescope::L2.mb0.dispatch", 17_500, 30_000)
    rank.op("aten::item", 18_000, 12_000)
    rank.op("aten::_local_scalar_dense", 18_100, 11_000)
    rank.copy(20_000, 2_000, launched=18_500, name="Memcpy DtoH (Device -> Pageable)")
    rank.call("cudaStreamSynchronize", 19_000, 10_000)
    rank.kernel("work", 60_000, 40_000, launched=55_000)
    found = causes(rank, tmp_path)
    assert found[0] == ("sync", "aten::item", "Memcpy DtoH (Device -> Pageable), cudaStreamSynchronize", 33_000)
    table = profiled(rank, tmp_path).idle_causes.filter(kind="sync")
    assert table.select("layer", "phase", "count").row(0) == (2, "dispatch", 1)
    assert table["longest_start_ns"][0] - BASE_NS == 22_000


def test_a_synchronisation_outside_any_operation_is_named_by_its_call(rank: TinyRank, tmp_path: Path) -> None:
    rank.call("cudaDeviceSynchronize", 5_000, 25_000)
    rank.kernel("work", 60_000, 40_000, launched=55_000)
    assert causes(rank, tmp_path)[0] == ("sync", NO_OPERATION, "cudaDeviceSynchronize", 35_000)


def test_a_long_operation_on_the_host_is_named(rank: TinyRank, tmp_path: Path) -> None:
    rank.op("aten::nonzero", 15_000, 42_000)
    rank.op("aten::empty", 30_000, 10_000)
    rank.kernel("work", 60_000, 40_000, launched=55_000)
    assert causes(rank, tmp_path) == [
        ("host_launch", "aten::nonzero", "", 35_000), ("gap", "aten::nonzero", "launch latency", 5_000),
    ]  # fmt: skip


def test_between_operations_the_time_is_pythons_before_the_next(rank: TinyRank, tmp_path: Path) -> None:
    rank.op("aten::mm", 50_000, 8_000)
    rank.kernel("work", 60_000, 40_000, launched=55_000)
    assert causes(rank, tmp_path)[0] == ("host_launch", "aten::mm", PYTHON, 35_000)


def test_a_dependency_names_what_it_came_after(rank: TinyRank, tmp_path: Path) -> None:
    rank.op("aten::add", 500, 1_000)
    rank.exchange(10_000, 15_000, sent=[4], received=[4], launched=100)
    rank.kernel("work", 60_000, 40_000, launched=1_000, stream=9)
    (found,) = causes(rank, tmp_path)
    assert found[:2] == ("dependency", "aten::add")
    assert found[2].startswith("after ncclDevKernel")
    assert found[3] == 35_000


def test_work_outside_the_step_is_named_by_its_range(rank: TinyRank, tmp_path: Path) -> None:
    rank.annotate("enumerate(DataLoader)#__next__", 15_000, 38_000)
    rank.kernel("work", 60_000, 40_000, launched=55_000)
    assert causes(rank, tmp_path)[0][:2] == ("outside", "enumerate(DataLoader)#__next__")


@pytest.mark.parametrize(
    "name",
    ["autograd::engine::evaluate_function: MmBackward0", "CheckpointFunction", "CheckpointFunctionBackward"],
)
def test_the_backward_pass_and_activation_checkpoints_are_inside_the_step(
    name: str, rank: TinyRank, tmp_path: Path
) -> None:
    rank.op(name, 15_000, 42_000)
    rank.kernel("work", 60_000, 40_000, launched=55_000)
    assert causes(rank, tmp_path)[0] == ("host_launch", name, "", 35_000)


def test_gaps_inside_a_replayed_graph_are_told_apart(tmp_path: Path) -> None:
    """Two kernels with the correlation of one cudaGraphLaunch, and idle time before and between them."""
    rank = TinyRank(0, 1)
    rank.step(0, 0, 100_000)
    rank.call("cudaGraphLaunch", 20_000, 3_000, correlation=900)
    for start in (30_000, 60_000):
        rank.add("node", "kernel", start, 20_000, tid=7, device=0, stream=7, correlation=900)
    found = causes(rank, tmp_path)
    assert ("gap", NO_OPERATION, "inside a graph", 20_000) in found  # 10 of latency, 10 between the nodes
    assert ("host_launch", NO_OPERATION, PYTHON, 20_000) in found
    stats = profiled(rank, tmp_path).launch_stats
    assert stats is not None
    assert (stats.num_launches, stats.num_graph_launches, stats.num_in_graphs) == (1, 1, 2)
    assert (stats.num_device_events, stats.num_unlinked, stats.latency_median_ns) == (2, 0, None)


def test_a_graph_whose_kernels_carry_no_launch_is_dated_by_its_own(tmp_path: Path) -> None:
    rank = TinyRank(0, 1)
    rank.step(0, 0, 100_000)
    rank.kernel("work", 0, 20_000, launched=0)
    rank.call("hipGraphLaunch", 50_000, 3_000)
    rank.kernel("node", 60_000, 20_000)
    rank.kernel("node", 85_000, 15_000)
    found = causes(rank, tmp_path)
    assert ("host_launch", NO_OPERATION, PYTHON, 30_000) in found
    assert ("gap", NO_OPERATION, "no launch recorded", 15_000) in found


def test_how_work_is_launched(tmp_path: Path) -> None:
    """Three launches 10 us apart; the device takes them up after 5, 25 and 45 us, so two wait at the end."""
    rank = TinyRank(0, 1)
    rank.step(0, 0, 100_000)
    for number in range(3):
        at = 10_000 * number
        rank.kernel("work", at + 5_000 + 20_000 * number, 30_000, launched=at)
    rank.kernel("lost", 95_000, 1_000, stream=COMM)
    stats = profiled(rank, tmp_path).launch_stats
    assert stats is not None
    assert (stats.num_device_events, stats.num_launches, stats.num_unlinked) == (4, 3, 1)
    assert (stats.latency_median_ns, stats.latency_p95_ns) == (25_000, pytest.approx(43_000))
    assert (stats.queue_mean, stats.queue_max) == (pytest.approx(4 / 3), 2)
    assert (stats.num_steps, stats.window_ns) == (1, 100_000)


def test_a_host_only_trace_launches_nothing(tmp_path: Path) -> None:
    rank = TinyRank(0, 2, device=None)
    rank.step(0, 0, 100)
    rank.op("aten::mm", 10, 20)
    rank.gloo(40, 45, 15, sent=[1, 1], received=[1, 1])
    rank.op("aten::add", 70, 30)
    found = profiled(rank, tmp_path)
    assert found.launch_stats is None
    rows = found.idle_causes.select("kind", "operation", "detail", "ns").rows()
    assert ("sync", "aten::add", "waking up after communication", 10) in rows
    assert ("host_launch", "aten::mm", PYTHON, 10) in rows
    assert sum(row[3] for row in rows) == 30
