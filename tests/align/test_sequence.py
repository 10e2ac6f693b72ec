"""Two ranks' sequences put side by side when one of them lost or gained an event."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moescope.align.sequence import align


def score(reference: str, other: str) -> np.ndarray:
    """+1 where two events have the same letter, -4 where they cannot be the same collective."""
    return np.array([[1.0 if a == b else -4.0 for b in other] for a in reference]).reshape(len(reference), len(other))


@pytest.mark.parametrize(
    ("reference", "other", "expected"),
    [
        ("abcde", "abcde", [0, 1, 2, 3, 4]),
        ("aaaa", "aaaa", [0, 1, 2, 3]),
        ("abcde", "abde", [0, 1, 3, 4]),  # lost in the middle
        ("abcde", "bcde", [1, 2, 3, 4]),  # lost at the start
        ("abcde", "abcd", [0, 1, 2, 3]),  # lost at the end
        ("abcd", "abxcd", [0, 1, -1, 2, 3]),  # an event nobody else has
        ("abc", "xyz", [-1, -1, -1]),  # nothing in common
        ("ababc", "babc", [1, 2, 3, 4]),  # a shift by one beats crossing
    ],
)
def test_each_event_finds_its_counterpart(reference: str, other: str, expected: list[int]) -> None:
    assert align(score(reference, other)).tolist() == expected


@given(st.text("abc", min_size=1, max_size=12))
def test_equal_sequences_map_one_to_one(word: str) -> None:
    assert align(score(word, word)).tolist() == list(range(len(word)))


@given(st.text("abc", max_size=10), st.text("abc", max_size=10))
def test_matches_keep_the_order_and_join_only_what_fits(reference: str, other: str) -> None:
    rows = align(score(reference, other))
    kept = rows[rows >= 0]
    assert (np.diff(kept) > 0).all()
    assert all(reference[row] == other[column] for column, row in enumerate(rows) if row >= 0)


def common_length(a: str, b: str) -> int:
    """Length of the longest common subsequence, by its definition."""
    if not a or not b:
        return 0
    if a[0] == b[0]:
        return 1 + common_length(a[1:], b[1:])
    return max(common_length(a[1:], b), common_length(a, b[1:]))


@given(st.text("ab", max_size=7), st.text("ab", max_size=7))
def test_as_many_events_are_matched_as_can_be(reference: str, other: str) -> None:
    assert int((align(score(reference, other)) >= 0).sum()) == common_length(reference, other)
