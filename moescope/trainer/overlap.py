"""Two batches at once: while the rows of one half of a microbatch travel, the other half computes.

A half's forward pass is a generator that stops wherever rows are under way. Its backward pass needs no schedule of
its own: autograd runs what was recorded in reverse order, and so alternates in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
"""A computation that stops while something it needs is under way."""


def run(steps: Steps[T]) -> T:
    """The result of a computation, waiting wherever it stops."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def alternate(halves: list[Steps[T]], on_switch: Callable[[int], None]) -> list[T]:
    """The results of computations that take turns; ``on_switch(i)`` is called before the i-th goes on."""
    results: dict[int, T] = {}
    while len(results) < len(halves):
        for index, half in enumerate(halves):
            if index in results:
                continue
            on_switch(index)
            try:
                next(half)
            except StopIteration as end:
                results[index] = end.value
    return [results[index] for index in range(len(halves))]
