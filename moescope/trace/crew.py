"""Work shared by the calling thread and helpers, threads here or processes (:mod:`moescope.trace.processes`), and work
done ahead of the calling thread."""

from __future__ import annotations

import os
import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from moescope.trace.interrupts import check, held

PATIENCE_S = 0.05
"""How long a thread waits before it looks whether others are still there."""

Function = Callable[..., Any]
Item = TypeVar("Item")


@dataclass(slots=True)
class Task:
    function: Function
    arguments: tuple[Any, ...]
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: BaseException | None = None

    def perform(self, caught: type[BaseException] = Exception) -> None:
        """Do it here; an error that is ``caught`` becomes the outcome."""
        try:
            self.result = self.function(*self.arguments)
        except caught as error:
            self.fail(error)
        else:
            self.done.set()

    def fail(self, error: BaseException) -> None:
        """End with an error, which is raised again where the result is asked for."""
        self.error = error
        self.done.set()


class Crew(ABC):
    """``num_helpers`` helpers beside the calling thread; use as a context manager.

    Until it is left, an interrupt is raised by :meth:`run` alone, between tasks: the helpers are always ended.
    """

    def __init__(self, num_helpers: int):
        self.num_helpers = num_helpers
        self._todo: queue.Queue[Task | None] = queue.Queue()
        self._threads: list[threading.Thread] = []
        self._interrupts = ExitStack()

    def __enter__(self) -> Crew:
        self._interrupts.enter_context(held())
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: Any) -> None:
        with self._interrupts:
            self._end()

    @abstractmethod
    def _begin(self) -> None:
        """Start the helpers, which take tasks from ``_todo``."""

    @abstractmethod
    def _end(self) -> None:
        """End the helpers, whatever they are at."""

    @property
    @abstractmethod
    def pids(self) -> list[int]:
        """Process ids of those that write files."""

    def run(
        self, function: Function, arguments: Iterable[tuple[Any, ...]], ahead: int
    ) -> Iterator[tuple[tuple[Any, ...], Any]]:
        """``(a, function(*a))`` for each ``a`` of ``arguments``, in order, at most ``ahead`` of them under way.

        The calling thread works too.
        """
        pending: deque[Task] = deque()
        source = iter(arguments)
        more = True
        while more or pending:
            check()
            while more and len(pending) < ahead:
                item = next(source, None)
                more = item is not None
                if item is not None:
                    pending.append(Task(function, item))
                    self._todo.put(pending[-1])
            if pending and pending[0].done.is_set():
                task = pending.popleft()
                if task.error is not None:
                    raise task.error
                yield task.arguments, task.result
            elif pending:
                self._work_or_wait(pending[0])

    def _work_or_wait(self, first: Task) -> None:
        """Do one task here; with none left to take, wait a while for ``first`` or for a helper to give one back."""
        try:
            task = self._todo.get_nowait()
        except queue.Empty:
            first.done.wait(PATIENCE_S)
        else:
            if task is not None:
                task.perform()


class Threads(Crew):
    """Helpers that are threads: at once there, and of use where the work is done outside the interpreter's lock."""

    def _begin(self) -> None:
        for _ in range(self.num_helpers):
            thread = threading.Thread(target=self._serve, daemon=True)
            thread.start()
            self._threads.append(thread)

    def _end(self) -> None:
        """Wait for the tasks in hand; take no others."""
        while not self._todo.empty():
            with suppress(queue.Empty):
                self._todo.get_nowait()
        for _thread in self._threads:
            self._todo.put(None)
        for thread in self._threads:
            thread.join()

    @property
    def pids(self) -> list[int]:
        """This process."""
        return [os.getpid()]

    def _serve(self) -> None:
        while (task := self._todo.get()) is not None:
            task.perform(BaseException)  # a panic of polars is no Exception, and here nobody would hear of it


def ahead(items: Iterator[Item], most: int) -> Iterator[Item]:
    """``items``, produced in a thread while the caller works on the previous ones; at most ``most`` wait for it."""
    ready: queue.Queue[tuple[Item] | BaseException | None] = queue.Queue(most)
    stop = threading.Event()

    def produce() -> None:
        outcome: BaseException | None = None
        try:
            for item in items:
                if not _offer(ready, (item,), stop):
                    return
        except BaseException as error:  # raised again in the consumer
            outcome = error
        _offer(ready, outcome, stop)

    thread = threading.Thread(target=produce, name="ahead", daemon=True)
    thread.start()
    try:
        while (given := ready.get()) is not None:
            if isinstance(given, BaseException):
                raise given
            yield given[0]
    finally:
        stop.set()
        thread.join()


def _offer(ready: queue.Queue[Item], item: Item, stop: threading.Event) -> bool:
    while not stop.is_set():
        try:
            ready.put(item, timeout=0.1)
        except queue.Full:
            continue
        return True
    return False
