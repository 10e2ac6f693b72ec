"""The peak of a device's memory, where it was reached and what lived there."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_trace import BASE_NS, TinyRank, write

from moescope.align.context import launches
from moescope.align.steps import step_windows
from moescope.attribution.memory import NUM_SERIES_BUCKETS, MemoryProfile, memory_profile
from moescope.trace import open_directory


def profile(rank: TinyRank, folder: Path) -> MemoryProfile | None:
    trace = open_directory(write([rank], folder)).ranks[0]
    events = trace.events()
    return memory_profile(trace, events, step_windows(events, launches(events)["launch_ns"]))


@pytest.fixture
def rank() -> TinyRank:
    """Dispatch allocates A (100) and B (50), experts free A and allocate C (300), then all is freed.
    500 bytes were there before."""
    rank = TinyRank(0, 1, memory_bytes=1 << 20)
    rank.step(0, 0, 1000)
    rank.annotate("moescope::L0.mb0.dispatch", 0, 100)
    rank.annotate("moescope::L0.mb0.experts", 100, 100)
    rank.annotate("moescope::L0.mb0.experts.bwd", 300, 100)
    rank.memory(10, 100, addr=1, total=600)
    rank.memory(20, 50, addr=2, total=650)
    rank.memory(110, -100, addr=1, total=550)
    rank.memory(120, 300, addr=3, total=850)
    rank.memory(310, -300, addr=3, total=550)
    rank.memory(320, -50, addr=2, total=500)
    return rank


def test_peak_and_what_was_live_there(rank: TinyRank, tmp_path: Path) -> None:
    got = profile(rank, tmp_path)
    assert got is not None
    assert (got.allocated_peak_bytes, got.reserved_peak_bytes, got.capacity_bytes) == (850, 1700, 1 << 20)
    assert (got.peak_at_ns - BASE_NS, got.peak_phase, got.device) == (120, "experts", "Tiny GPU")
    assert got.live_by_phase_bytes == {"experts": 300, "dispatch": 50, "before the window": 500}
    assert [size for _, size in got.series] == [600, 650, 550, 850, 550, 500]


def test_the_peak_by_layer_and_operation_and_the_reserved_bytes_beside_it(rank: TinyRank, tmp_path: Path) -> None:
    rank.op("aten::empty", 100, 60)
    rank.op("aten::empty_strided", 5, 60)
    got = profile(rank, tmp_path)
    assert got is not None
    assert got.live_by_layer_bytes == {"layer 0": 350, "before the window": 500}
    assert got.live_by_operation_bytes == {"before the window": 500, "aten::empty": 300, "aten::empty_strided": 50}
    assert got.reserved_series == tuple((at, 2 * size) for at, size in got.series)
    assert (got.reserved_at_peak_bytes, got.peak_by_step_bytes) == (1700, {0: 850})


def test_an_address_that_is_used_again_counts_once(rank: TinyRank, tmp_path: Path) -> None:
    rank.memory(330, 700, addr=1, total=1200)
    got = profile(rank, tmp_path)
    assert got is not None
    assert got.live_by_phase_bytes == {"experts (backward)": 700, "before the window": 500}


def test_what_lived_at_the_peak_adds_up_to_it(rank: TinyRank, tmp_path: Path) -> None:
    rank.memory(150, 77, addr=9, total=927)
    got = profile(rank, tmp_path)
    assert got is not None
    assert sum(got.live_by_phase_bytes.values()) == got.allocated_peak_bytes == 927


def test_without_phases_the_operation_is_named(tmp_path: Path) -> None:
    rank = TinyRank(0, 1)
    rank.step(0, 0, 1000)
    rank.op("aten::mm", 5, 20)
    rank.memory(10, 100, addr=1, total=100)
    rank.memory(500, 10, addr=2, total=110)
    got = profile(rank, tmp_path)
    assert got is not None
    assert got.live_by_phase_bytes == {"aten::mm": 100, "no annotated phase": 10}


def test_the_device_comes_before_the_host(rank: TinyRank, tmp_path: Path) -> None:
    rank.memory(400, 10**6, addr=77, total=10**6, on_gpu=False)
    got = profile(rank, tmp_path)
    assert got is not None
    assert got.allocated_peak_bytes == 850


def test_a_host_only_trace_has_the_hosts_memory(tmp_path: Path) -> None:
    rank = TinyRank(0, 1, device=None)
    rank.step(0, 0, 1000)
    rank.memory(10, 100, addr=1, total=100, on_gpu=False)
    got = profile(rank, tmp_path)
    assert got is not None
    assert (got.device, got.allocated_peak_bytes, got.capacity_bytes) == ("host", 100, None)


def test_what_lies_outside_the_steps_is_no_peak(rank: TinyRank, tmp_path: Path) -> None:
    rank.memory(5_000, 10_000, addr=50, total=10_500)
    got = profile(rank, tmp_path)
    assert got is not None
    assert got.allocated_peak_bytes == 850


def test_no_memory_events_no_memory(tmp_path: Path) -> None:
    rank = TinyRank(0, 1)
    rank.step(0, 0, 10)
    assert profile(rank, tmp_path) is None


def test_events_without_totals_tell_no_memory(tmp_path: Path) -> None:
    """As torch 1.9 recorded them."""
    rank = TinyRank(0, 1)
    rank.step(0, 0, 10)
    rank.memory(5, 100, addr=1, total=100)
    rank.events[-1]["args"] = {"Bytes": 100, "Device Type": 1, "Device Id": 0}
    assert profile(rank, tmp_path) is None


def test_without_addresses_the_peak_is_known_but_not_what_lived_there(rank: TinyRank, tmp_path: Path) -> None:
    for event in rank.events:
        event["args"].pop("Addr", None)
    got = profile(rank, tmp_path)
    assert got is not None
    assert (got.allocated_peak_bytes, got.live_by_phase_bytes) == (850, {})


def test_the_series_is_short_and_keeps_the_peak(tmp_path: Path) -> None:
    rank = TinyRank(0, 1)
    rank.step(0, 0, 100_000)
    for turn in range(3000):
        rank.memory(10 * turn, 1, addr=turn, total=turn % 1000 + (5000 if turn == 1777 else 0))
    got = profile(rank, tmp_path)
    assert got is not None
    assert len(got.series) == NUM_SERIES_BUCKETS
    assert (BASE_NS + 17_770, 5777) in got.series
