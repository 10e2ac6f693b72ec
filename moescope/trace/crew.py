"""Helper processes that share work with the calling thread.

A helper is ``python -m moescope.trace.worker``: it takes pickled tasks on its standard input and answers on its
standard output. Unlike a pool of :mod:`multiprocessing` it needs no guard in the caller's main module, starts while
the caller already works, and a helper that dies costs its task a second run here, not the result.
"""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import moescope
from moescope.trace.interrupts import check, held
from moescope.trace.wire import packed, receive, send

_UNDER_WAY = 2
"""Tasks that a helper has in hand: one to work on, one so that it need not wait for the next."""

_PIPE_BYTES = 1 << 20
"""As much as Linux gives a pipe; a message then costs few turns at the interpreter's lock, not one for each 64 KiB."""

_PATIENCE_S = 0.05
_HOME = str(Path(moescope.__file__).parents[1])
"""Where this package lies, which an editable installation finds by other means than ``sys.path``."""

Function = Callable[..., Any]


@dataclass(slots=True)
class _Task:
    function: Function
    arguments: tuple[Any, ...]
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: BaseException | None = None

    def perform(self) -> None:
        """Do it here."""
        try:
            self.result = self.function(*self.arguments)
        except Exception as error:
            self.fail(error)
        else:
            self.done.set()

    def fail(self, error: Exception) -> None:
        """End with an error, which is raised again where the result is asked for."""
        self.error = error
        self.done.set()


class Crew:
    """``num_helpers`` processes beside the calling thread; use as a context manager.

    Until it is left, an interrupt is raised by :meth:`run` alone, between tasks: the helpers are always ended.
    """

    def __init__(self, num_helpers: int):
        self._num_helpers = num_helpers
        self._todo: queue.Queue[_Task | None] = queue.Queue()
        self._helpers: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []
        self._interrupts = ExitStack()

    def __enter__(self) -> Crew:
        self._interrupts.enter_context(held())
        for _ in range(self._num_helpers):
            self._helpers.append(_start(self._num_helpers + 1))
            self._threads.append(threading.Thread(target=self._serve, args=(self._helpers[-1],), daemon=True))
            self._threads[-1].start()
        return self

    def __exit__(self, *exception: Any) -> None:
        with self._interrupts:
            self._dismiss()

    def _dismiss(self) -> None:
        for helper in self._helpers:
            helper.kill()
        for _thread in self._threads:
            self._todo.put(None)
        for thread, helper in zip(self._threads, self._helpers, strict=True):
            thread.join()
            helper.wait()
            for stream in (helper.stdin, helper.stdout):
                if stream is not None:
                    _close(stream)

    @property
    def pids(self) -> list[int]:
        """Process ids of the helpers."""
        return [helper.pid for helper in self._helpers]

    def run(
        self, function: Function, arguments: Iterable[tuple[Any, ...]], ahead: int
    ) -> Iterator[tuple[tuple[Any, ...], Any]]:
        """``(a, function(*a))`` for each ``a`` of ``arguments``, in order, at most ``ahead`` of them under way.

        ``function`` must be importable by name. The calling thread works too.
        """
        pending: deque[_Task] = deque()
        source = iter(arguments)
        more = True
        while more or pending:
            check()
            while more and len(pending) < ahead:
                item = next(source, None)
                more = item is not None
                if item is not None:
                    pending.append(_Task(function, item))
                    self._todo.put(pending[-1])
            if pending and pending[0].done.is_set():
                task = pending.popleft()
                if task.error is not None:
                    raise task.error
                yield task.arguments, task.result
            elif pending:
                self._work_or_wait(pending[0])

    def _work_or_wait(self, first: _Task) -> None:
        """Do one task here; with none left to take, wait a while for ``first`` or for a helper to give one back."""
        try:
            task = self._todo.get_nowait()
        except queue.Empty:
            first.done.wait(_PATIENCE_S)
        else:
            if task is not None:
                task.perform()

    def _serve(self, helper: subprocess.Popen[bytes]) -> None:
        """Hand tasks to ``helper`` until the crew is dismissed or the helper is gone."""
        if helper.stdin is None or helper.stdout is None or not _ready(helper.stdout):
            return
        under_way: deque[_Task] = deque()
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

    def _next_task(self, room: threading.Semaphore, taker: threading.Thread) -> _Task | None:
        while not room.acquire(timeout=_PATIENCE_S):
            if not taker.is_alive():
                return None
        return self._todo.get() if taker.is_alive() else None


def _take_answers(stream: IO[bytes], under_way: deque[_Task], room: threading.Semaphore) -> None:
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
