"""A crew of processes.

A helper is ``python -m moescope.trace.worker``: it takes pickled tasks on its standard input and answers on its
standard output. Unlike a pool of :mod:`multiprocessing` it needs no guard in the caller's main module, starts while
the caller already works, and a helper that dies costs its task a second run here, not the result.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from typing import IO

import moescope
from moescope.trace.crew import PATIENCE_S, Crew, Task
from moescope.trace.wire import packed, receive, send

_UNDER_WAY = 2
"""Tasks that a helper has in hand: one to work on, one so that it need not wait for the next."""

_PIPE_BYTES = 1 << 20
"""As much as Linux gives a pipe; a message then costs few turns at the interpreter's lock, not one for each 64 KiB."""

_HOME = str(Path(moescope.__file__).parents[1])
"""Where this package lies, which an editable installation finds by other means than ``sys.path``."""


class Processes(Crew):
    """Helpers that are processes; what they run must be importable by name."""

    def __init__(self, num_helpers: int):
        super().__init__(num_helpers)
        self._helpers: list[subprocess.Popen[bytes]] = []

    def _begin(self) -> None:
        for _ in range(self.num_helpers):
            self._helpers.append(_start(self.num_helpers + 1))
            thread = threading.Thread(target=self._serve, args=(self._helpers[-1],), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _end(self) -> None:
        for helper in self._helpers:
            helper.kill()
        for _thread in self._threads:
            self._todo.put(None)
        for thread in self._threads:
            thread.join()
        for helper in self._helpers:
            helper.wait()
            for stream in (helper.stdin, helper.stdout):
                if stream is not None:
                    _close(stream)

    @property
    def pids(self) -> list[int]:
        """This process and the helpers."""
        return [os.getpid(), *(helper.pid for helper in self._helpers)]

    def _serve(self, helper: subprocess.Popen[bytes]) -> None:
        """Hand tasks to ``helper`` until the crew is dismissed or the helper is gone."""
        if helper.stdin is None or helper.stdout is None or not _ready(helper.stdout):
            return
        under_way: deque[Task] = deque()
        room = threading.Semaphore(_UNDER_WAY)
        taker = threading.Thread(target=_take_answers, args=(helper.stdout, under_way, room), daemon=True)
        taker.start()
        while (task := self._next_task(room, taker)) is not None:
            try:
                message = packed((task.function, task.arguments))
            except Exception as error:
                task.fail(error)
                room.release()
                continue
            under_way.append(task)
            try:
                send(helper.stdin, message)
            except OSError:
                break
        _close(helper.stdin)
        taker.join()
        for task in under_way:  # the helper died on them
            self._todo.put(task)

    def _next_task(self, room: threading.Semaphore, taker: threading.Thread) -> Task | None:
        while not room.acquire(timeout=PATIENCE_S):
            if not taker.is_alive():
                return None
        return self._todo.get() if taker.is_alive() else None


def _take_answers(stream: IO[bytes], under_way: deque[Task], room: threading.Semaphore) -> None:
    """Give each task under way its answer, until the helper is gone."""
    try:
        while True:
            error, result = receive(stream)
            task = under_way.popleft()
            task.error, task.result = error, result
            task.done.set()
            room.release()
    except (OSError, EOFError, pickle.UnpicklingError):
        return


def _start(num_processes: int) -> subprocess.Popen[bytes]:
    threads = max(1, (os.cpu_count() or 1) // num_processes)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*(path for path in sys.path if path), _HOME]),
        "POLARS_MAX_THREADS": str(threads),
    }
    return subprocess.Popen(
        [sys.executable, "-S", "-m", "moescope.trace.worker"],  # the paths are given: no need to look for them again
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        pipesize=_PIPE_BYTES,
        start_new_session=True,  # an interrupt from the keyboard is this process's to handle
    )


def _ready(stream: IO[bytes]) -> bool:
    try:
        return bool(receive(stream) == "ready")
    except (OSError, EOFError, pickle.UnpicklingError):
        return False


def _close(stream: IO[bytes]) -> None:
    try:
        stream.close()
    except BrokenPipeError:  # the helper was killed with a task half sent
        return
