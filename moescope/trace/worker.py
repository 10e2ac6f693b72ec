"""A helper process of :mod:`moescope.trace.crew`: runs tasks from standard input until it is closed."""

from __future__ import annotations

import gc
import os
import queue
import sys
import threading
from typing import Any

from moescope.trace import ingest, scan  # noqa: F401  # imported before the first task, so that "ready" means it
from moescope.trace.crew import receive, send


def main() -> None:
    """Serve tasks."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever prints must not print into the answers
    gc.disable()  # a block's records hold no cycles and are freed by counting
    send(answers, "ready")
    tasks: queue.Queue[tuple[Any, ...] | None] = queue.Queue()
    # Taken in while another task runs: the parent must never wait for this process to read while it waits to write.
    threading.Thread(target=_take_tasks, args=(tasks,), daemon=True).start()
    while (task := tasks.get()) is not None:
        function, arguments = task
        try:
            answer: tuple[Exception | None, object] = (None, function(*arguments))
        except Exception as error:  # travels to the parent
            answer = (error, None)
        send(answers, answer)


def _take_tasks(tasks: queue.Queue[tuple[Any, ...] | None]) -> None:
    try:
        while True:
            tasks.put(receive(sys.stdin.buffer))
    except EOFError:
        tasks.put(None)


if __name__ == "__main__":
    main()
