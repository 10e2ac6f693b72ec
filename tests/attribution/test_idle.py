"""Why the device was idle, by the launch that ended the idleness and what the host did before it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_trace import BASE_NS, COMM, TinyRank, write

from moescope.attribution.device import DeviceIntervals
from moescope.attribution.idle import HostState, split_idle
from moescope.attribution.labels import Label
from moescope.attribution.profile import profile_rank
from moescope.attribution.sweep import Segments
from moescope.trace import open_directory

Pieces = list[tuple[int, int, str]]


def pieces(rank: TinyRank, folder: Path) -> Pieces:
    """(start, end, label) of everything in the rank's only step, neighbours of one label joined."""
    segments = profile_rank(open_directory(write([rank], folder)).ranks[0]).segments
    joined: Pieces = []
    for start, end, code in segments.select("start_ns", "end_ns", "label").rows():
        label = Label(code).name.lower()
        begun = joined.pop()[0] if joined and joined[-1][2] == label else start - BASE_NS
        joined.append((begun, end - BASE_NS, label))
    return joined


def idle(rank: TinyRank, folder: Path) -> Pieces:
    return [piece for piece in pieces(rank, folder) if piece[2] != "other"]


@pytest.fixture
def rank() -> TinyRank:
    """A step of 100 us in which the device computes for the first 20."""
    rank = TinyRank(0, 1)
    rank.step(0, 0, 100_000)
    rank.kernel("work", 0, 20_000, launched=0)
    return rank


def test_the_host_launched_late(rank: TinyRank, tmp_path: Path) -> None:
    """Until the launch the device waited for the host, from the launch to the start for the launch's latency."""
    rank.kernel("work", 60_000, 40_000, launched=55_000)
    assert idle(rank, tmp_path) == [(20_000, 55_000, "host_launch"), (55_000, 60_000, "gap")]


def test_the_host_had_waited_for_the_device(rank: TinyRank, tmp_path: Path) -> None:
    rank.call("cudaStreamSynchronize", 5_000, 25_000)
    rank.kernel("work", 60_000, 40_000, launched=55_000)
    assert idle(rank, tmp_path) == [(20_000, 55_000, "sync"), (55_000, 60_000, "gap")]


def test_a_synchronisation_that_began_after_the_device_had_drained_counts_too(rank: TinyRank, tmp_path: Path) -> None:
    rank.call("cudaEventSynchronize", 30_000, 2_000)
    rank.kernel("work", 60_000, 40_000, launched=55_000)
    assert idle(rank, tmp_path)[0] == (20_000, 55_000, "sync")


def test_a_synchronisation_that_was_over_before_is_none(rank: TinyRank, tmp_path: Path) -> None:
    rank.call("cudaStreamSynchronize", 5_000, 10_000)
    rank.kernel("work", 60_000, 40_000, launched=55_000)
    assert idle(rank, tmp_path)[0] == (20_000, 55_000, "host_launch")


def test_the_host_was_outside_the_step(rank: TinyRank, tmp_path: Path) -> None:
    rank.annotate("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 15_000, 35_000)
    rank.kernel("work", 60_000, 40_000, launched=55_000)
    assert idle(rank, tmp_path)[0] == (20_000, 55_000, "outside")


def test_launched_long_before_but_held_back_by_another_stream(rank: TinyRank, tmp_path: Path) -> None:
    """The next kernel had been launched, on the other stream: it waited for an event."""
    rank.kernel("work", 60_000, 40_000, launched=1_000, stream=9)
    assert idle(rank, tmp_path) == [(20_000, 60_000, "dependency")]


def test_a_short_wait_for_another_stream_is_a_gap(rank: TinyRank, tmp_path: Path) -> None:
    rank.kernel("work", 29_000, 71_000, launched=1_000, stream=9)
    assert idle(rank, tmp_path) == [(20_000, 29_000, "gap")]


def test_launched_long_before_on_the_same_stream_is_a_gap(rank: TinyRank, tmp_path: Path) -> None:
    rank.kernel("work", 60_000, 40_000, launched=1_000)
    assert idle(rank, tmp_path) == [(20_000, 60_000, "gap")]


def test_after_the_last_kernel_the_host_was_elsewhere(rank: TinyRank, tmp_path: Path) -> None:
    assert idle(rank, tmp_path) == [(20_000, 100_000, "outside")]


def test_without_a_recorded_launch_the_host_is_not_blamed(rank: TinyRank, tmp_path: Path) -> None:
    rank.kernel("work", 60_000, 40_000, stream=9)
    assert idle(rank, tmp_path) == [(20_000, 60_000, "dependency")]


def test_a_device_idle_from_the_start_waited_for_the_first_launch(tmp_path: Path) -> None:
    rank = TinyRank(0, 1)
    rank.step(0, 0, 100_000)
    rank.kernel("work", 40_000, 60_000, launched=30_000)
    assert idle(rank, tmp_path) == [(0, 30_000, "host_launch"), (30_000, 40_000, "gap")]


def test_allocations_on_the_host_take_the_idle_time_they_cover(rank: TinyRank, tmp_path: Path) -> None:
    """The launch after a cudaMalloc waits for it; under running kernels an allocation costs nothing."""
    rank.call("cudaMalloc", 10_000, 30_000)
    rank.kernel("work", 60_000, 40_000, launched=55_000)
    assert idle(rank, tmp_path) == [
        (20_000, 40_000, "allocator"), (40_000, 55_000, "host_launch"), (55_000, 60_000, "gap"),
    ]  # fmt: skip


def test_kernels_that_only_wait_for_peers_are_communication_without_transfer(rank: TinyRank, tmp_path: Path) -> None:
    rank.kernel("void deep_ep::intranode::notify_dispatch<8>(int*)", 20_000, 30_000, launched=1_000, stream=COMM)
    rank.copy(50_000, 50_000, launched=2_000)
    assert idle(rank, tmp_path) == [(20_000, 50_000, "comm_wait"), (50_000, 100_000, "copy")]


def test_compute_hides_communication_and_communication_hides_copies(rank: TinyRank, tmp_path: Path) -> None:
    rank.exchange(10_000, 30_000, sent=[4], received=[4], launched=1_000)
    rank.copy(30_000, 70_000, launched=2_000)
    assert pieces(rank, tmp_path) == [
        (0, 20_000, "other"), (20_000, 40_000, "all_to_all"), (40_000, 100_000, "copy"),
    ]  # fmt: skip


def test_on_a_host_only_trace_the_host_is_the_device(tmp_path: Path) -> None:
    """What follows an exchange is waking up; what lies between operations is the host's own code."""
    rank = TinyRank(0, 2, device=None)
    rank.step(0, 0, 100)
    rank.op("aten::mm", 10, 20)
    rank.gloo(40, 45, 15, sent=[1, 1], received=[1, 1])
    rank.op("aten::add", 70, 30)
    assert pieces(rank, tmp_path) == [
        (0, 10, "host_launch"), (10, 30, "other_gemm"), (30, 40, "host_launch"), (40, 60, "all_to_all"),
        (60, 70, "sync"), (70, 100, "elementwise"),
    ]  # fmt: skip


def test_a_device_that_only_allocated_was_idle_outside_the_step() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    device = DeviceIntervals(*[nothing] * 5, nothing.astype(bool), *[nothing] * 3, on_gpu=True)
    host = HostState(*[nothing] * 5)
    whole = Segments(np.array([0]), np.array([100]), np.array([-1]), np.array([-1]))
    found = split_idle(whole, device, host)
    assert (found.start_ns.tolist(), found.end_ns.tolist(), found.label.tolist()) == ([0], [100], [int(Label.OUTSIDE)])
