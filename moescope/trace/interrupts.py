"""Ctrl-C while helpers start, files are half written or things are put in order again: noted, and acted on later.

Python raises :class:`KeyboardInterrupt` between any two instructions, also in the first of the clean-up after an
earlier one, and polars raises one of its own besides Python's for the same signal. Within :func:`held` an interrupt
is only noted; :func:`check` raises it, at moments where stopping is clean.
"""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

_SIGACTION_BYTES = 512
"""More than ``struct sigaction`` takes on any system."""


@dataclass(slots=True)
class _State:
    holding: bool = False
    noted: bool = False
    raised: bool = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """The handler within :func:`held`: a second interrupt does not wait for a good moment, more have no effect."""
        if self.noted and not self.raised:
            self.raised = True
            signal.default_int_handler(number, frame)
        self.noted = True


_state = _State()


@contextmanager
def held() -> Iterator[None]:
    """Note interrupts instead of raising them; one that no :func:`check` raised is raised at the end.

    Has no effect within another one, outside the main thread, and where interrupts are ignored.
    """
    apart = threading.current_thread() is not threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    if apart or _state.holding or not callable(before):
        yield
        return
    with _same_handler_after():
        _state.holding, _state.noted, _state.raised = True, False, False
        signal.signal(signal.SIGINT, _state.note)
        try:
            yield
            check()
        finally:
            _state.holding = _state.noted = False
            signal.signal(signal.SIGINT, before)


def check() -> None:
    """Raise the interrupt that was noted, if any."""
    if _state.noted and not _state.raised and threading.current_thread() is threading.main_thread():
        _state.raised = True
        raise KeyboardInterrupt


@contextmanager
def _same_handler_after() -> Iterator[None]:
    """Give the system back the handler it had: setting one through Python removes that of polars before it."""
    if not hasattr(signal, "pthread_sigmask"):  # no sigaction there
        yield
        return
    library, saved = ctypes.CDLL(None), ctypes.create_string_buffer(_SIGACTION_BYTES)
    library.sigaction(int(signal.SIGINT), None, saved)
    try:
        yield
    finally:
        library.sigaction(int(signal.SIGINT), saved, None)
