"""Threads that can be waited for again after an interrupt of the first wait.

``threading.Thread.join`` of CPython up to 3.12 takes a thread for ended once a signal's exception has interrupted it
(bpo-45274's cure releases the lock that the thread itself holds); an event does not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background(threading.Thread):
    """Runs ``action`` off the training thread."""

    def __init__(self, action: Callable[[], None], name: str, *, daemon: bool = False) -> None:
        super().__init__(name=name, daemon=daemon)
        self._action = action
        self._ended = threading.Event()

    def run(self) -> None:
        """Do it."""
        try:
            self._action()
        finally:
            self._ended.set()

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended within ``timeout_s`` seconds; may be interrupted, and called again then."""
        return self._ended.wait(timeout_s)
