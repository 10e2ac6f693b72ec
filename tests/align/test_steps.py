"""Windows of steps: consecutive, and a kernel that outlives the host's step stays with the step that launched it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_trace import BASE_NS, TinyRank, write

from moescope.align.context import launches
from moescope.align.steps import assign_steps, step_windows
from moescope.trace import open_directory


def windows(rank: TinyRank, folder: Path) -> list[tuple[int, int, int]]:
    events = open_directory(write([rank], folder)).ranks[0].events()
    found = step_windows(events, launches(events)["launch_ns"])
    return [(step, start - BASE_NS, end - BASE_NS) for step, start, end in found.rows()]


def test_a_step_lasts_until_its_last_kernel_and_the_next_begins_there(tmp_path: Path) -> None:
    """The host of step 1 runs ahead: its kernels end 150 after it, and step 2's window begins with their end."""
    rank = TinyRank(0, 1)
    rank.step(1, 0, 1000)
    rank.kernel("a", 300, 850, launched=100)  # until 1150
    rank.step(2, 1000, 1000)
    rank.kernel("b", 1200, 900, launched=1050)  # until 2100, the last
    assert windows(rank, tmp_path) == [(1, 0, 1150), (2, 1150, 2100)]


def test_without_device_work_the_hosts_ranges_are_the_windows(tmp_path: Path) -> None:
    rank = TinyRank(0, 1)
    rank.step(4, 0, 100)
    rank.step(5, 110, 100)
    assert windows(rank, tmp_path) == [(4, 0, 110), (5, 110, 210)]


def test_steps_far_apart_are_not_joined(tmp_path: Path) -> None:
    """Between them the profiler was off, or a checkpoint was written: no step's time."""
    rank = TinyRank(0, 1)
    rank.step(4, 0, 100)
    rank.step(5, 1000, 100)
    assert windows(rank, tmp_path) == [(4, 0, 100), (5, 1000, 1100)]


def test_a_trace_without_marks_is_one_step(tmp_path: Path) -> None:
    rank = TinyRank(0, 1)
    rank.op("aten::mm", 50, 100)
    rank.kernel("a", 100, 300, launched=60)
    assert windows(rank, tmp_path) == [(0, 50, 400)]


def test_a_step_recorded_twice_counts_once(tmp_path: Path) -> None:
    rank = TinyRank(0, 1)
    rank.step(1, 0, 100)
    rank.add("ProfilerStep#1", "user_annotation", 0, 100, 5)  # as torch 2.x repeats it on other threads
    assert windows(rank, tmp_path) == [(1, 0, 100)]


def test_the_ranges_on_the_device_are_no_steps(tmp_path: Path) -> None:
    rank = TinyRank(0, 1)
    rank.step(1, 0, 100)
    rank.add("ProfilerStep#1", "gpu_user_annotation", 20, 300, 7)
    assert windows(rank, tmp_path) == [(1, 0, 100)]


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 500), st.integers(0, 40)), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 2500), st.integers(0, 400), st.integers(0, 700)), max_size=8),
)
def test_windows_follow_one_another_and_hold_what_their_host_launched(
    steps: list[tuple[int, int]], kernels: list[tuple[int, int, int]]
) -> None:
    """``steps``: (length, gap after it); ``kernels``: (launched, delay, length)."""
    marks, at = [], 0
    for number, (length, gap) in enumerate(steps):
        marks.append((number, at, at + length))
        at += length + gap
    rows = [(f"ProfilerStep#{number}", "annotation", low, high - low, None) for number, low, high in marks]
    rows += [("k", "kernel", launch + delay, length, launch) for launch, delay, length in kernels]
    schema = {"name": pl.String, "category": pl.String, "start_ns": pl.Int64, "dur_ns": pl.Int64, "launch": pl.Int64}
    table = pl.DataFrame(rows, schema, orient="row")
    found = step_windows(table.drop("launch"), table["launch"]).rows()
    assert [step for step, _, _ in found] == [number for number, _, _ in marks]
    for (_, start, end), (_, following, _) in pairwise(found):
        assert start <= end <= following
    for (_, _, end), (_, low, high) in zip(found, marks, strict=True):
        mine = [launch + delay + length for launch, delay, length in kernels if low <= launch < high]
        assert end >= max([high, *mine])


def test_moments_belong_to_the_window_they_are_in() -> None:
    table = pl.DataFrame({"step": [3, 4], "start_ns": [0, 100], "end_ns": [100, 150]})
    moments = pl.Series([-1, 0, 99, 100, 150, 151])
    assert assign_steps(moments, table).to_list() == [None, 3, 3, 4, 4, None]
    assert assign_steps(moments, table.head(0)).to_list() == [None] * 6
    assert np.array_equal(assign_steps(moments.head(0), table), [])
