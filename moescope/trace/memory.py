"""Memory for blocks of text, and work done ahead of who takes its results."""

from __future__ import annotations

import mmap
import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import TypeVar

Item = TypeVar("Item")
_LARGE_PAGE = 2 << 20


def fresh(size: int) -> memoryview:
    """At least ``size`` bytes to write to, of large pages where the system has them and they are worth it: one costs a
    third of the small ones in its place."""
    if size < _LARGE_PAGE // 2:
        return memoryview(bytearray(size))
    size = -(-size // _LARGE_PAGE) * _LARGE_PAGE
    if sys.platform != "linux":
        return memoryview(mmap.mmap(-1, size))
    pages = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them
        pages.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(pages)


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
