"""Partition of a time line and union lengths against counting nanosecond by nanosecond."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moescope.attribution.sweep import partition, union_ns

Interval = tuple[int, int, int]
"""start, end, label; empty where the end is not after the start."""

intervals = st.lists(st.tuples(st.integers(-5, 30), st.integers(-5, 30), st.integers(0, 3)), max_size=10)
windows = st.tuples(st.integers(-3, 15), st.integers(0, 20)).map(lambda w: (w[0], w[0] + w[1]))


def columns(rows: list[Interval]) -> list[np.ndarray]:
    return [np.array([row[place] for row in rows], dtype=np.int64) for place in range(3)]


@given(intervals, windows)
def test_every_nanosecond_goes_to_the_smallest_active_label(rows: list[Interval], window: tuple[int, int]) -> None:
    low, high = window
    start, end, label = columns(rows)
    pieces = partition(start, end, label, low, high)
    got = [int(piece) for piece, length in zip(pieces.label, pieces.duration_ns, strict=True) for _ in range(length)]
    expected = [min((label for a, b, label in rows if a <= ns < b), default=-1) for ns in range(low, high)]
    assert got == expected


@given(intervals, windows)
def test_pieces_follow_one_another_and_fill_the_window(rows: list[Interval], window: tuple[int, int]) -> None:
    pieces = partition(*columns(rows), *window)
    bounds = list(zip(pieces.start_ns.tolist(), pieces.end_ns.tolist(), strict=True))
    assert int(pieces.duration_ns.sum()) == window[1] - window[0]
    assert all(a < b for a, b in bounds)
    assert all(before[1] == after[0] for before, after in pairwise(bounds))


@given(intervals, windows)
def test_the_winner_is_active_throughout_its_piece_and_has_its_label(
    rows: list[Interval], window: tuple[int, int]
) -> None:
    pieces = partition(*columns(rows), *window)
    for start, end, label, winner in zip(pieces.start_ns, pieces.end_ns, pieces.label, pieces.winner, strict=True):
        assert (winner < 0) == (label < 0)
        if winner >= 0:
            begun, over, its_label = rows[winner]
            assert begun <= start
            assert end <= over
            assert its_label == label


@given(intervals)
def test_length_of_a_union(rows: list[Interval]) -> None:
    start, end, _ = columns([row for row in rows if row[1] >= row[0]])
    assert union_ns(start, end) == len({ns for a, b, _ in rows for ns in range(a, b)})


@pytest.mark.parametrize("offset", [0, 1_700_000_000_000_000_000])
def test_exact_to_the_nanosecond_far_from_zero(offset: int) -> None:
    start = np.array([0, 1, 2], dtype=np.int64) + offset
    pieces = partition(start, start + 2, np.array([1, 0, 1]), offset, offset + 5)
    assert (pieces.start_ns - offset).tolist() == [0, 1, 2, 3, 4]
    assert pieces.label.tolist() == [1, 0, 0, 1, -1]
    assert union_ns(start, start + 2) == 4


def test_an_empty_window_has_no_pieces() -> None:
    assert len(partition(*columns([(0, 10, 1)]), 5, 5).label) == 0
