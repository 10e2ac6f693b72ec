"""Work spread over processes that need nothing of the caller's script.

The standard library's spawned processes import the main script again, so a script that calls moescope at its top level
would start itself over and over; loky's processes import only the function they run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_processes(function: Callable[[Item], Result], items: Sequence[Item], num_workers: int) -> Iterator[Result]:
    """``function`` over ``items`` in their order, in ``num_workers`` processes; in this one for a single worker.

    An interrupt, or leaving the iteration early, ends the processes at once.
    """
    if num_workers < 2 or len(items) < 2:
        yield from map(function, items)
        return
    from loky import ProcessPoolExecutor

    pool = ProcessPoolExecutor(max_workers=min(num_workers, len(items)))
    finished = False
    try:
        results: Iterable[Result] = pool.map(function, items)
        yield from results
        finished = True
    finally:
        pool.shutdown(wait=finished, kill_workers=not finished)
