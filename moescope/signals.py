"""Signals that end a command, and leaving them as they were for a caller whose process goes on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], object]


@contextmanager
def signals_kept(*numbers: signal.Signals, handler: Handler | None = None) -> Iterator[None]:
    """Give ``numbers`` back the handlers they had; meanwhile they have ``handler``, if one is given.

    Outside the main thread, where none can be set, there is nothing to do.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    earlier = {number: signal.getsignal(number) for number in numbers}
    try:
        for number in numbers if handler is not None else ():
            signal.signal(number, handler)
        yield
    finally:
        for number, before in earlier.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)
