"""What holds for every reading of this process that does not say otherwise: the cluster, and the user's patterns.

The command line sets them once, for everything a command reads, also later and in other threads (``serve``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Defaults:
    """Defaults of the arguments of :func:`moescope.trace.open_directory`."""

    scheduler: str | None = None
    """Address of a Dask scheduler."""
    patterns: Path | None = None
    """A table of the form of ``patterns.toml``."""


_current = [Defaults()]


def defaults() -> Defaults:
    """The defaults that hold now."""
    return _current[-1]


@contextmanager
def reading_defaults(scheduler: str | None = None, patterns: Path | None = None) -> Iterator[None]:
    """Let these hold until the block is left, in all threads."""
    _current.append(Defaults(scheduler, patterns))
    try:
        yield
    finally:
        _current.pop()
