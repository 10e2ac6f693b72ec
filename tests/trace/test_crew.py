"""Helper threads and processes: order, errors, death, interrupts, and no need for a guard in the caller's script."""

import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from trace_tasks import die_elsewhere, double, fail, lock
from trace_zoo import event, open_files, told, trace

from moescope.trace import compiled, open_directory, reading
from moescope.trace.crew import Crew, Threads
from moescope.trace.processes import Processes
from moescope.trace.wire import packed, receive, send
from moescope.trace.workers import in_processes

KINDS = pytest.mark.parametrize("kind", [Threads, Processes])
WAYS = pytest.mark.parametrize("way", ["as built", "by records"])
"""How blocks are decoded, on which depends what helpers are."""


@KINDS
def test_results_come_in_order_and_from_all_processes(kind: type[Crew]) -> None:
    with kind(1) as crew:
        results = list(crew.run(double, ((i, 0.05) for i in range(40)), ahead=8))
    assert [(arguments[0], result[0]) for arguments, result in results] == [(i, 2 * i) for i in range(40)]
    assert {result[1] for _, result in results} <= set(crew.pids)


@KINDS
def test_an_error_is_raised_here_and_ends_the_helpers(kind: type[Crew]) -> None:
    threads = threading.active_count()
    with pytest.raises(ValueError, match="no 3"), kind(2) as crew:
        list(crew.run(fail, ((i,) for i in (3, 4)), ahead=2))
    assert threading.active_count() == threads
    for pid in set(crew.pids) - {os.getpid()}:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


class Panic(BaseException):
    """As polars raises one."""


def test_a_panic_in_a_thread_is_raised_here() -> None:
    main = threading.get_ident()

    def panic_elsewhere(value: int) -> int:
        if threading.get_ident() != main:
            raise Panic
        time.sleep(0.02)
        return value

    with pytest.raises(Panic), Threads(1) as crew:
        list(crew.run(panic_elsewhere, ((i,) for i in range(50)), ahead=8))


def test_a_thread_that_cannot_start_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, start, handler = threading.active_count(), threading.Thread.start, signal.getsignal(signal.SIGINT)

    def third_fails(thread: threading.Thread) -> None:
        if threading.active_count() >= threads + 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", third_fails)
    with pytest.raises(RuntimeError, match="new thread"), Threads(5):
        pass
    assert threading.active_count() == threads
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.parametrize("function", [lambda value: double(value, 0.02), lock])
def test_what_cannot_travel_is_an_error(function: Callable[[int], object]) -> None:
    """A function that has no importable name; a result that cannot be pickled. Done here, both are fine."""
    with Processes(1) as crew, pytest.raises((pickle.PicklingError, TypeError, AttributeError), match="pickle"):
        list(crew.run(function, ((i,) for i in range(1000)), ahead=8))


def test_a_helper_that_dies_costs_no_result() -> None:
    with Processes(1) as crew:
        time.sleep(0.1)
        results = [result for _, result in crew.run(die_elsewhere, ((i, os.getpid()) for i in range(30)), ahead=4)]
    assert results == list(range(30))


def test_processes_are_optional() -> None:
    assert [value for value, _ in in_processes(double, [1, 2, 3], 1)] == [2, 4, 6]
    assert [value for value, _ in in_processes(double, [1, 2, 3], 2)] == [2, 4, 6]


SCRIPT = """
import sys
from moescope.trace import compiled, open_directory
if sys.argv[2] == "by records": compiled._block = None
print(len(open_directory(sys.argv[1], workers=2, progress=lambda *a: print(*a, flush=True)).ranks))
"""


def _traces(folder: Path, num_ranks: int, num_events: int) -> None:
    events = ", ".join(
        ['{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 1}'] * num_events
    )
    for rank in range(num_ranks):
        text = f'{{"distributedInfo": {{"rank": {rank}}}, "traceEvents": [{events}]}}'
        (folder / f"rank{rank}.json").write_text(text)


@WAYS
@pytest.mark.parametrize("workers", [2, 6])
def test_small_and_large_files_are_read_alike(
    way: str, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small ones each by one process, the blocks of others by all; in the order of ranks all the same."""
    files = {f"rank{rank}.json": trace(*[event(ts=str(rank))] * (1 + 40 * (rank % 3 == 1))) for rank in range(7)}
    files = {name: text.replace('"rank": 0', f'"rank": {name[4]}') for name, text in files.items()}
    expected = told(open_files(tmp_path, files))
    shutil.rmtree(tmp_path / ".moescope")
    if way == "by records":
        monkeypatch.setattr(compiled, "_block", None)
    monkeypatch.setattr(reading, "_SMALL_BYTES", 0)
    monkeypatch.setattr(reading, "_WHOLE_BYTES", 1000)
    done: list[tuple[int, int]] = []
    directory = open_directory(tmp_path, workers=workers, progress=lambda count, total, _: done.append((count, total)))
    assert told(directory) == expected
    assert done == [(count, 7) for count in range(1, 8)]


@WAYS
def test_a_script_without_a_guard_reads_in_parallel(way: str, tmp_path: Path) -> None:
    _traces(tmp_path, 2, 200_000)
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path, way], capture_output=True, text=True, check=True, timeout=120
    )
    assert run.stdout.split("\n")[-2] == "2"
    assert run.stdout.startswith("1 2 rank")


INTERRUPTED = """
import os, signal, sys, threading
from moescope.trace import compiled, open_directory
if sys.argv[3] == "by records": compiled._block = None
after_s = float(sys.argv[2])
def interrupt(): os.kill(os.getpid(), signal.SIGINT)
def progress(done, total, what): print(done, total, flush=True); after_s < 0 and done == 1 and interrupt()
threading.Timer(max(0.0, after_s), interrupt).start() if after_s >= 0 else None
open_directory(sys.argv[1], workers=2, progress=progress)
threading.Event().wait(60)  # the interrupt may come after the last file
"""


@WAYS
@pytest.mark.parametrize("after_s", [-1, 0, 0.02, 0.1, 0.2, 0.4])
def test_an_interrupt_at_any_moment_leaves_nothing_half_written(way: str, after_s: float, tmp_path: Path) -> None:
    """At ``after_s`` seconds, or, below zero, once the first of six files is read."""
    _traces(tmp_path, 6, 60_000)
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path), str(after_s), way]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert run.stderr.rstrip().endswith("KeyboardInterrupt")
    assert run.stderr.count("Traceback") == 1
    assert after_s >= 0 or run.stdout == "1 6\n"
    assert not list(tmp_path.glob(".moescope/trace/*.partial"))
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), way]
    again = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert again.stdout.split("\n")[-2] == "6"


@pytest.mark.parametrize("busy", [False, True])
def test_without_its_parent_a_helper_ends(busy: bool) -> None:
    """Also in the middle of a task, and without a word."""
    command = [sys.executable, "-m", "moescope.trace.worker"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as helper:
        assert helper.stdin is not None
        assert helper.stdout is not None
        assert receive(helper.stdout) == "ready"
        if busy:
            send(helper.stdin, packed((time.sleep, (3600,))))
        _, errors = helper.communicate(timeout=60)
    assert (helper.returncode, errors) == (0, b"")
