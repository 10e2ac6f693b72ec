"""Text for a terminal, and the console that every command prints to."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from moescope.views.text import printable, ranges

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["MAX_WIDTH", "MIN_WIDTH", "console", "printable", "rank_names"]

MIN_WIDTH, MAX_WIDTH = 60, 100


def rank_names(ranks: Sequence[int]) -> str:
    """Return ``rank 3`` or ``ranks 0–3, 7``."""
    return f"{'rank' if len(set(ranks)) == 1 else 'ranks'} {ranges(tuple(ranks))}"


def console(stream: TextIO | None = None) -> Console:
    """Return a rich console at most 100 columns wide; colour only where the stream is a terminal."""
    from rich.console import Console

    class Piped(Console):
        """A console whose reader may go away, which the boundary of the commands knows how to end."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    stream = sys.stdout if stream is None else stream
    terminal = stream.isatty()
    width = shutil.get_terminal_size((MAX_WIDTH, 40)).columns if terminal else MAX_WIDTH
    width = min(max(width, MIN_WIDTH), MAX_WIDTH)
    return Piped(file=stream, width=width, highlight=False, emoji=False, markup=False, force_terminal=terminal)
