"""Schedules: which steps lie in which window."""

from __future__ import annotations

from typing import Any

import pytest
from moescope_hooks.schedule import Schedule, Window


def numbers(schedule: Schedule, steps: int) -> list[int | None]:
    windows = [schedule.window_of(step) for step in range(steps)]
    return [None if window is None else window.number for window in windows]


def test_one_window() -> None:
    schedule = Schedule(start=3, steps=2)
    assert numbers(schedule, 7) == [None, None, None, 0, 0, None, None]


def test_repeated_windows_end_after_their_number() -> None:
    schedule = Schedule(start=1, steps=1, windows=2, every=3)
    assert numbers(schedule, 9) == [None, 0, None, None, 1, None, None, None, None]


def test_ranks_may_be_chosen() -> None:
    window = Schedule(start=1, ranks=(0, 2)).window_of(1)
    assert window == Window(0, 1, 2, (0, 2))
    assert window.covers(2, 2)
    assert not window.covers(2, 1)
    assert not window.covers(3, 2)


WRONG: list[dict[str, Any]] = [
    {"start": -1},
    {"steps": 0},
    {"steps": 51},
    {"windows": 0},
    {"windows": 2},
    {"windows": 2, "every": 2, "steps": 2},
    {"start": None},
    {"max_seconds": 0},
    {"max_bytes": 0},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_schedule_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"Schedule\."):
        Schedule(**wrong)
