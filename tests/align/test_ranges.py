"""Nested ranges: which one a moment belongs to, and which are on the outside."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from moescope.align.ranges import innermost, outermost

Range = tuple[int, int]


@st.composite
def nested(draw: st.DrawFn, low: int = 0, high: int = 40, depth: int = 3) -> list[Range]:
    """Ranges of one thread, as a profiler records them: each two are nested or disjoint, at most touching."""
    cuts = sorted(draw(st.lists(st.integers(low, high), max_size=6)))
    found: list[Range] = []
    for start, end in zip(cuts[::2], cuts[1::2], strict=False):
        found.append((start, end))
        if depth and end > start:
            found += draw(nested(start, end, depth - 1))
    return draw(st.permutations(found))


def parent(ranges: list[Range], moment: int) -> Range | None:
    """The range a moment belongs to, by walking down: the latest sibling that has begun, then its children."""
    holding = [r for r in ranges if r[0] <= moment <= r[1]]
    return max(holding, key=lambda r: (r[0], -r[1]), default=None)


@given(nested(), st.lists(st.integers(-2, 42), max_size=20))
def test_innermost_is_the_latest_and_shortest_range_around_a_moment(ranges: list[Range], moments: list[int]) -> None:
    start, end = (np.array([r[side] for r in ranges], dtype=np.int64) for side in (0, 1))
    found = innermost(start, end, np.array(moments, dtype=np.int64))
    assert [None if index < 0 else ranges[index] for index in found] == [parent(ranges, m) for m in moments]


def test_a_moment_between_two_calls_belongs_to_the_later_one_not_to_a_child_of_the_earlier() -> None:
    """Traces with whole microseconds are full of calls that end where the next begins."""
    start, end = np.array([0, 5, 10]), np.array([10, 10, 20])  # a call, its child, the next call
    assert innermost(start, end, np.array([9, 10, 11])).tolist() == [1, 2, 2]


def test_innermost_finds_ranges_of_several_threads_that_overlap() -> None:
    assert innermost(np.array([0, 5]), np.array([10, 15]), np.array([3, 12, 16])).tolist() == [0, 1, -1]


def test_nothing_encloses_a_moment_where_there_are_no_ranges() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    assert innermost(nothing, nothing, np.array([1, 2])).tolist() == [-1, -1]
    assert outermost(nothing, nothing).tolist() == []


@given(nested())
def test_outermost_keeps_what_no_other_range_contains(ranges: list[Range]) -> None:
    start, end = (np.array([r[side] for r in ranges], dtype=np.int64) for side in (0, 1))
    kept = outermost(start, end)
    for index, (low, high) in enumerate(ranges):
        others = [r for place, r in enumerate(ranges) if place != index and r != (low, high)]
        twin = any(kept[place] for place, r in enumerate(ranges) if place != index and r == (low, high))
        contained = any(r[0] <= low and high <= r[1] for r in others)
        assert kept[index] == (not contained and not twin)
