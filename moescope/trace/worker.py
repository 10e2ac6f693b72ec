"""A helper process of :mod:`moescope.trace.processes`: runs tasks from standard input, and ends when that is closed."""

from __future__ import annotations

import gc
import os
import queue
import sys
import threading
from typing import IO, Any

from moescope.trace import pieces  # noqa: F401  # the usual task, imported before "ready" is said
from moescope.trace.wire import packed, receive, send


def main() -> None:
    """Serve tasks."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever prints must not print into the answers
    gc.disable()  # a block's records hold no cycles and are freed by counting
    tasks: queue.Queue[tuple[Any, ...]] = queue.Queue()
    done: queue.Queue[bytes] = queue.Queue()
    done.put(packed("ready"))
    # Messages pass while a task runs: the parent must never wait for this process to read while it waits to write.
    threading.Thread(target=_take_tasks, args=(tasks,), daemon=True).start()
    threading.Thread(target=_give_answers, args=(answers, done), daemon=True).start()
    while True:
        function, arguments = tasks.get()
        try:
            done.put(packed((None, function(*arguments))))
        except Exception as error:  # travels to the parent
            done.put(packed((error, None)))


def _take_tasks(tasks: queue.Queue[tuple[Any, ...]]) -> None:
    try:
        while True:
            tasks.put(receive(sys.stdin.buffer))
    except EOFError:  # nobody is there to take an answer
        os._exit(0)


def _give_answers(answers: IO[bytes], done: queue.Queue[bytes]) -> None:
    try:
        while True:
            send(answers, done.get())
    except BrokenPipeError:
        os._exit(0)


if __name__ == "__main__":
    main()
