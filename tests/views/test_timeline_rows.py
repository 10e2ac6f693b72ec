"""Rows and strips: exact counts, nothing lost, busy time to the nanosecond; against brute force."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from moescope.views.timeline import rows as rows_module
from moescope.views.timeline import strips as strips_module
from moescope.views.timeline.rows import Row, depths
from moescope.views.timeline.strip_file import load_strips, make_strips, pack, unpack
from moescope.views.timeline.strips import CLASSES, Strip, make_strip

GAPS = st.lists(st.tuples(st.integers(0, 90), st.integers(0, 300)), min_size=0, max_size=60)
PARTS = ("compute.expert_gemm", "comm.all_to_all.transfer", "comm.all_to_all.wait_removable", "idle.gap")


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


@example(gaps=[(0, 0)], first=0, count=1, shift=0, cached=True)
@example(gaps=[(0, 4), (0, 0), (0, 3)], first=1, count=1, shift=2, cached=False)
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
        if b - a < width and low <= a < high:
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


PIECES = st.lists(st.tuples(st.integers(0, 90), st.integers(1, 300), st.integers(0, 3)), max_size=60)


def strip_of(pieces: list[tuple[int, int, int]]) -> tuple[Strip, list[int]]:
    """Pieces one after another: (gap before, duration, class); and the class of every nanosecond, -1 for none."""
    start, end, kind, at, moments = [], [], [], 0, []
    for gap, duration, what in pieces:
        start.append(at + gap)
        at = at + gap + duration
        end.append(at)
        kind.append(what)
        moments += [-1] * gap + [what] * duration
    arrays = np.array(start, dtype=np.int64), np.array(end, dtype=np.int64), np.array(kind, dtype=np.uint8)
    return make_strip(*arrays), moments


def counted(moments: list[int], low: int, high: int) -> list[int]:
    inside = moments[max(low, 0) : max(high, 0)]
    return [inside.count(kind) for kind in range(len(CLASSES))]


@given(PIECES, st.integers(-10, 170), st.integers(0, 9000))
def test_busy_time_is_exact(pieces, low: int, length: int) -> None:
    strip, moments = strip_of(pieces)
    assert list(strip.busy(low, low + length)) == counted(moments, low, low + length)


@given(PIECES, st.integers(-3, 60), st.integers(1, 60), st.integers(0, 9))
def test_shares_are_exact_at_every_zoom(pieces, first: int, count: int, shift: int) -> None:
    least = strips_module.LEAST_BUCKETS
    strips_module.LEAST_BUCKETS = 2  # so that few pieces have several levels
    try:
        strip, moments = strip_of(pieces)
    finally:
        strips_module.LEAST_BUCKETS = least
    shares = strip.shares(first, count, shift)
    for bucket in range(count):
        low = (first + bucket) << shift
        for kind, busy in enumerate(counted(moments, low, low + (1 << shift))):
            expected = max(round(busy * 255 / (1 << shift)), 1) if busy else 0
            assert shares[kind, bucket] == pytest.approx(expected, abs=0.51)


def test_a_rank_without_pieces_is_blank() -> None:
    strip, _ = strip_of([])
    assert strip.busy(0, 100) == (0,) * len(CLASSES)
    assert not strip.shares(0, 10, 3).any()


@given(st.lists(PIECES, min_size=1, max_size=3))
def test_strips_survive_their_file(ranks) -> None:
    frames = {
        rank: pl.DataFrame(
            [(7 + a, 7 + b, PARTS[kind]) for a, b, kind in runs_of(strip_of(pieces)[1])],
            schema={"start_ns": pl.Int64, "end_ns": pl.Int64, "part": pl.String},
            orient="row",
        )
        for rank, pieces in enumerate(ranks)
    }
    made = make_strips({rank: SimpleNamespace(pieces=frame) for rank, frame in frames.items()}, 7)
    again = unpack(pack(made))
    assert (again.base_ns, again.used) == (7, made.used)
    for rank, strip in made.of_rank.items():
        assert again.of_rank[rank].busy(0, 10_000) == strip.busy(0, 10_000)
        assert (again.of_rank[rank].shares(-1, 40, 4) == strip.shares(-1, 40, 4)).all()


def runs_of(moments: list[int]) -> list[tuple[int, int, int]]:
    """(start, end, class) of the stretches of one class."""
    edges = [i for i in range(len(moments) + 1) if i in (0, len(moments)) or moments[i] != moments[i - 1]]
    return [(a, b, moments[a]) for a, b in pairwise(edges) if moments and moments[a] >= 0]


def test_a_foreign_file_holds_no_strips(tmp_path: Path) -> None:
    (tmp_path / "x.strips").write_bytes(b"something else")
    assert load_strips(tmp_path / "x.strips") is None
    assert load_strips(tmp_path / "absent.strips") is None
