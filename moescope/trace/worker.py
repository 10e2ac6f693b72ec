"""A helper process of :mod:`moescope.trace.crew`: runs tasks from standard input until it is closed."""

from __future__ import annotations

import gc
import os
import queue
import sys
import threading
from typing import IO, Any

from moescope.trace import pieces  # noqa: F401  # the usual task, imported before "ready" is said
from moescope.trace.wire import receive, send


def main() -> None:
    """Serve tasks."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever prints must not print into the answers
    gc.disable()  # a block's records hold no cycles and are freed by counting
    send(answers, "ready")
    tasks: queue.Queue[tuple[Any, ...] | None] = queue.Queue()
    done: queue.Queue[object] = queue.Queue()
    # Messages pass while a task runs: the parent must never wait for this process to read while it waits to write.
    threading.Thread(target=_take_tasks, args=(tasks,), daemon=True).start()
    threading.Thread(target=_give_answers, args=(answers, done), daemon=True).start()
    while (task := tasks.get()) is not None:
        function, arguments = task
        try:
            done.put((None, function(*arguments)))
        except Exception as error:  # travels to the parent
            done.put((error, None))


def _take_tasks(tasks: queue.Queue[tuple[Any, ...] | None]) -> None:
    try:
        while True:
            tasks.put(receive(sys.stdin.buffer))
    except EOFError:
        tasks.put(None)


def _give_answers(answers: IO[bytes], done: queue.Queue[object]) -> None:
    while True:
        send(answers, done.get())


if __name__ == "__main__":
    main()
