"""Work spread over processes that need nothing of the caller's script.

The standard library's spawned processes import the main script again, so a script that calls moescope at its top level
would start itself over and over; the helpers of :mod:`moescope.trace.processes` import only the function they run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from moescope.trace.processes import Processes
from moescope.trace.reading import default_workers as available_cores

__all__ = ["available_cores", "in_processes"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_processes(function: Callable[[Item], Result], items: Sequence[Item], num_workers: int) -> Iterator[Result]:
    """``function`` over ``items`` in their order, in ``num_workers`` processes, of which this one is the first.

    ``function`` must be importable by name. An interrupt, or leaving the iteration early, ends the processes at once.
    """
    if num_workers < 2 or len(items) < 2:
        yield from map(function, items)
        return
    with Processes(min(num_workers, len(items)) - 1) as crew:
        for _, result in crew.run(function, ((item,) for item in items), ahead=len(items)):
            yield result
