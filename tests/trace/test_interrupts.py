"""Interrupts are noted, and raised once, at a moment that was chosen."""

# ruff: noqa: PT012 - where in its block the interrupt is raised is what is tested

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from moescope.trace.interrupts import check, held


@pytest.fixture(autouse=True)
def _same_handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) is before


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_is_raised_by_the_next_check_and_once() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt), held():
        try:
            interrupt()
            steps.append("goes on")
            check()
            steps.append("not reached")
        finally:
            interrupt()
            check()
            steps.append("put in order")
    assert steps == ["goes on", "put in order"]
    check()


def test_an_interrupt_that_no_check_raised_is_raised_at_the_end() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt), held():
        interrupt()
        steps.append("done")
    assert steps == ["done"]


def test_a_second_interrupt_does_not_wait() -> None:
    with pytest.raises(KeyboardInterrupt), held():
        interrupt()
        interrupt()
        pytest.fail("not reached")


def test_an_error_is_not_hidden_by_an_interrupt() -> None:
    with pytest.raises(ValueError, match="wrong"), held():
        interrupt()
        raise ValueError("wrong")
    check()


def test_within_another_the_outer_one_decides() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt), held():
        with held():
            interrupt()
        steps.append("after the inner one")
    assert steps == ["after the inner one"]


def test_where_interrupts_are_ignored_they_stay_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with held():
            interrupt()
            check()
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_are_left_alone() -> None:
    def work() -> None:
        with held():
            check()

    with pytest.raises(KeyboardInterrupt), held():
        interrupt()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
