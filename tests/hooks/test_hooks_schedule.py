"""Schedules: which steps lie in which window."""

from __future__ import annotations

import pytest
from moescope_hooks.schedule import Schedule


def test_one_window() -> None:
    schedule = Schedule(start=3, steps=2)
    assert [schedule.window_of(step) for step in range(7)] == [None, None, None, 0, 0, None, None]


def test_repeated_windows_end_after_their_number() -> None:
    schedule = Schedule(start=1, steps=1, windows=2, every=3)
    assert [schedule.window_of(step) for step in range(9)] == [None, 0, None, None, 1, None, None, None, None]


def test_ranks_may_be_chosen() -> None:
    assert Schedule(ranks=(0, 2)).records(2)
    assert not Schedule(ranks=(0, 2)).records(1)


@pytest.mark.parametrize("wrong", [{"start": -1}, {"steps": 0}, {"windows": 2}, {"windows": 2, "every": 2, "steps": 2}])
def test_a_schedule_that_cannot_be_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"Schedule\."):
        Schedule(**wrong)  # type: ignore[arg-type]
