"""Helper processes: order, errors, death, interrupts, and no need for a guard in the caller's script."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from trace_tasks import die_elsewhere, double, fail

from moescope.trace.crew import Crew
from moescope.trace.workers import in_processes


def test_results_come_in_order_and_from_all_processes() -> None:
    with Crew(1) as crew:
        results = list(crew.run(double, ((i, 0.05) for i in range(40)), ahead=8))
    assert [(arguments[0], result[0]) for arguments, result in results] == [(i, 2 * i) for i in range(40)]
    assert {result[1] for _, result in results} <= {os.getpid(), *crew.pids}


def test_an_error_is_raised_here_and_ends_the_helpers() -> None:
    with pytest.raises(ValueError, match="no 3"), Crew(2) as crew:
        list(crew.run(fail, ((i,) for i in (3, 4)), ahead=2))
    for pid in crew.pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_helper_that_dies_costs_no_result() -> None:
    with Crew(1) as crew:
        time.sleep(0.1)
        results = [result for _, result in crew.run(die_elsewhere, ((i, os.getpid()) for i in range(30)), ahead=4)]
    assert results == list(range(30))


def test_processes_are_optional() -> None:
    assert [value for value, _ in in_processes(double, [1, 2, 3], 1)] == [2, 4, 6]
    assert [value for value, _ in in_processes(double, [1, 2, 3], 2)] == [2, 4, 6]


SCRIPT = """
import sys
from moescope.trace import open_directory
print(len(open_directory(sys.argv[1], workers=2, progress=lambda *a: print(*a, flush=True)).ranks))
"""


def _traces(folder: Path, num_ranks: int, num_events: int) -> None:
    events = ", ".join(
        ['{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 1}'] * num_events
    )
    for rank in range(num_ranks):
        text = f'{{"distributedInfo": {{"rank": {rank}}}, "traceEvents": [{events}]}}'
        (folder / f"rank{rank}.json").write_text(text)


def test_a_script_without_a_guard_reads_in_parallel(tmp_path: Path) -> None:
    _traces(tmp_path, 2, 200_000)
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path], capture_output=True, text=True, check=True, timeout=120
    )
    assert run.stdout.split("\n")[-2] == "2"
    assert run.stdout.startswith("1 2 rank")


def test_an_interrupt_leaves_nothing_half_written(tmp_path: Path) -> None:
    _traces(tmp_path, 6, 100_000)
    command = [sys.executable, "-c", SCRIPT, tmp_path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline().startswith(b"1 6 ")
        os.killpg(run.pid, signal.SIGINT)
        _, errors = run.communicate(timeout=60)
    assert errors.decode().rstrip().endswith("KeyboardInterrupt")
    assert errors.count(b"Traceback") == 1
    left = [path.name for path in (tmp_path / ".moescope" / "trace").iterdir()]
    assert not [name for name in left if name.endswith(".partial")]
    again = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert again.stdout.split("\n")[-2] == "6"
