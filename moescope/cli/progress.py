"""Progress of what takes more than a second: on stderr, transient on a terminal, a plain line elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from moescope.cli.text import console, printable

Progress = Callable[[int, int, str], None]
"""``(done, total, label)``: how many of how many pieces are finished, and which came last."""
PATIENCE_S = 1.0
LINE_EVERY_S = 10.0


@contextmanager
def progress(title: str, stream: TextIO | None = None) -> Iterator[Progress]:
    """Yield a function that is told ``(done, total, label)``; what it is told shows once a second has passed."""
    stream = sys.stderr if stream is None else stream
    with _bar(title, stream) if stream.isatty() else _lines(title, stream) as show:
        yield show


@contextmanager
def _after_patience(start: Callable[[], None]) -> Iterator[None]:
    timer = threading.Timer(PATIENCE_S, start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


@contextmanager
def _bar(title: str, stream: TextIO) -> Iterator[Progress]:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Bar(*columns, console=console(stream), transient=True)
    task = bar.add_task(title, total=None)

    def show(done: int, total: int, label: str) -> None:
        bar.update(task, completed=done, total=total, description=printable(f"{title} {label}"))

    try:
        with _after_patience(bar.start):
            yield show
    finally:
        bar.stop()


@contextmanager
def _lines(title: str, stream: TextIO) -> Iterator[Progress]:
    state = f"{title} ..."
    next_line_s = float("inf")

    def tell() -> None:
        nonlocal next_line_s
        print(printable(state), file=stream, flush=True)
        next_line_s = time.monotonic() + LINE_EVERY_S

    def show(done: int, total: int, label: str) -> None:
        nonlocal state
        state = f"{title}: {done} of {total}, {label}"
        if time.monotonic() >= next_line_s:
            tell()

    with _after_patience(tell):
        yield show
