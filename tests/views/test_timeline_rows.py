"""Rows and strips: exact counts, nothing lost, busy time to the nanosecond; against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moescope.views.timeline import rows as rows_module
from moescope.views.timeline.rows import Row, depths
from moescope.views.timeline.strips import CLASSES, COMPUTE, COPY, TRANSFER, WAIT, make_strip

GAPS = st.lists(st.tuples(st.integers(0, 90), st.integers(0, 300)), min_size=0, max_size=60)
INTERVALS = st.lists(st.tuples(st.integers(0, 200), st.integers(1, 60)), min_size=1, max_size=25)


def row_of(gaps: list[tuple[int, int]]) -> Row:
    """Slices one after another: (gap before, duration)."""
    start, end, at = [], [], 0
    for gap, duration in gaps:
        start.append(at + gap)
        at = at + gap + duration
        end.append(at)
    n = len(start)
    arrays = np.array(start, dtype=np.int64), np.array(end, dtype=np.int64)
    return Row(*arrays, np.arange(n, dtype=np.int32), np.zeros(n, dtype=np.uint8), np.arange(n, dtype=np.int64))


@given(GAPS, st.integers(-3, 40), st.integers(1, 64), st.integers(0, 9), st.booleans())
def test_tile_counts_equal_exact_counts(gaps, first: int, count: int, shift: int, cached: bool) -> None:
    row = row_of(gaps)
    width, threshold = 1 << shift, rows_module.CACHE_FROM_SLICES
    rows_module.CACHE_FROM_SLICES = 0 if cached else threshold
    try:
        longs, shorts = row.query(first, count, shift)
    finally:
        rows_module.CACHE_FROM_SLICES = threshold
    low, high = first * width, (first + count) * width
    slices = list(zip(row.start_ns.tolist(), row.end_ns.tolist(), strict=True))
    touching = [i for i, (a, b) in enumerate(slices) if b - a >= width and b > low and a < high]
    assert longs.tolist() == touching
    expected: dict[int, list[int]] = {}
    for i, (a, b) in enumerate(slices):
        if b - a < width and b > low and low <= a < high:
            expected.setdefault(a // width, []).append(i)
    assert shorts.bucket.tolist() == sorted(expected)
    for bucket, number, busy, longest in zip(
        shorts.bucket.tolist(), shorts.count.tolist(), shorts.busy_ns.tolist(), shorts.longest.tolist(), strict=True
    ):
        inside = expected[bucket]
        lengths = [slices[i][1] - slices[i][0] for i in inside]
        assert number == len(inside)
        assert busy == sum(lengths)
        assert longest in inside
        assert slices[longest][1] - slices[longest][0] == max(lengths)


def test_a_million_slices_fit_into_the_pixels() -> None:
    start = np.arange(1_000_000, dtype=np.int64) * 10
    n = len(start)
    row = Row(start, start + 8, np.zeros(n, np.int32), np.zeros(n, np.uint8), np.arange(n))
    longs, shorts = row.query(0, 1000, 14)
    assert len(longs) == 0
    assert len(shorts.bucket) <= 1000
    assert shorts.count.sum() == n
    assert shorts.busy_ns.sum() == 8 * n


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 30)), max_size=40))
def test_rows_never_overlap(intervals: list[tuple[int, int]]) -> None:
    ordered = sorted(((a, a + d) for a, d in intervals), key=lambda item: (item[0], -item[1]))
    start = np.array([a for a, _ in ordered], dtype=np.int64)
    end = np.array([b for _, b in ordered], dtype=np.int64)
    row = depths(start, end)
    for index in set(row.tolist()):
        mine = np.flatnonzero(row == index)
        assert (start[mine][1:] >= end[mine][:-1]).all()
    assert len(row) == len(ordered)


def test_nested_slices_lie_at_their_depth() -> None:
    start = np.array([0, 0, 10, 12, 50, 100], dtype=np.int64)
    end = np.array([100, 40, 30, 20, 60, 120], dtype=np.int64)
    assert depths(start, end).tolist() == [0, 1, 2, 3, 1, 0]


def brute(intervals, waits, at: int) -> int:
    """The class at one nanosecond."""
    kinds = {kind for (a, d), kind in intervals if a <= at < a + d}
    if COMPUTE in kinds:
        return COMPUTE
    if TRANSFER in kinds:
        return WAIT if any(a <= at < a + d for a, d in waits) else TRANSFER
    return COPY if COPY in kinds else -1


@given(
    st.lists(
        st.tuples(st.tuples(st.integers(0, 120), st.integers(1, 40)), st.sampled_from([COMPUTE, TRANSFER, COPY])),
        min_size=1,
        max_size=12,
    ),
    st.lists(st.tuples(st.integers(0, 120), st.integers(0, 40)), max_size=5),
    st.integers(-10, 170),
    st.integers(0, 180),
)
def test_busy_time_is_exact(intervals, waits, low: int, length: int) -> None:
    start = np.array([a for (a, _), _ in intervals], dtype=np.int64)
    end = start + np.array([d for (_, d), _ in intervals], dtype=np.int64)
    kind = np.array([k for _, k in intervals], dtype=np.int64)
    wait = np.array(waits, dtype=np.int64).reshape(-1, 2)
    strip = make_strip(start, end, kind, (wait[:, 0], wait[:, 0] + wait[:, 1]))
    expected = [0] * len(CLASSES)
    for at in range(low, low + length):
        index = brute(intervals, waits, at)
        if index >= 0:
            expected[index] += 1
    assert list(strip.busy(low, low + length)) == expected


@given(INTERVALS, st.integers(0, 6))
def test_shares_show_whatever_is_there(intervals, shift: int) -> None:
    start = np.array([a for a, _ in intervals], dtype=np.int64)
    end = start + np.array([d for _, d in intervals], dtype=np.int64)
    strip = make_strip(start, end, np.zeros(len(start), dtype=np.int64), (start[:0], start[:0]))
    count = (280 >> shift) + 1
    shares = strip.shares(0, count, shift)
    for bucket in range(count):
        busy = strip.busy(bucket << shift, (bucket + 1) << shift)[COMPUTE]
        assert (shares[COMPUTE, bucket] > 0) == (busy > 0)
        assert shares[COMPUTE, bucket] == pytest.approx(max(busy * 255 / (1 << shift), 1 if busy else 0), abs=0.51)


def test_a_rank_without_events_is_idle() -> None:
    none = np.zeros(0, dtype=np.int64)
    strip = make_strip(none, none, none, (none, none))
    assert strip.busy(0, 100) == (0, 0, 0, 0)
    assert not strip.shares(0, 10, 3).any()
