"""Noticing that a folder has changed since it was analysed: a run that is still going, a trace that has just landed."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

OWN_FOLDER = ".moescope"
LEAST_S = 2.0
"""Between two looks at a folder, and between an analysis and the next one."""
LOOKS_SHARE = 20.0
"""A look that took t seconds is followed by another after this many t."""
ANALYSIS_SHARE = 3.0
"""An analysis that took t seconds is followed by another after this many t."""
PATIENCE_S = 20.0
"""A folder that never stands still is analysed after this long all the same."""


def folder_state(path: Path) -> str:
    """A digest of the names, sizes and times of all files under ``path``, moescope's own left out; contents unread."""
    digest = hashlib.blake2b(digest_size=16)
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if name != OWN_FOLDER)
        for name in sorted(files):
            try:
                stat = os.stat(os.path.join(folder, name))
            except OSError:
                continue
            text = f"{folder}/{name} {stat.st_size} {stat.st_mtime_ns}\n"
            digest.update(text.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


class Watch:
    """One folder: looked at now and then, reported once it has changed and stands still.

    Two looks in a row must see the same new state, so that a trace that is still being written is left alone.
    """

    def __init__(
        self,
        path: Path,
        state: Callable[[Path], str] = folder_state,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._state, self._now = path, state, now
        self._looking = threading.Lock()
        self._analysed: str | None = None
        self._last: str | None = None
        self._restless_since: float | None = None
        self._began = 0.0
        self._next_look = 0.0
        self._next_analysis = 0.0

    def begin(self) -> None:
        """An analysis begins: what changes from here on is new."""
        self._began = self._now()
        self._analysed = self._last = self._state(self._path)
        self._restless_since = None

    def end(self) -> None:
        """The analysis has ended, well or badly."""
        now = self._now()
        self._next_analysis = now + max(LEAST_S, ANALYSIS_SHARE * (now - self._began))

    def has_changed(self) -> bool:
        """Whether to analyse anew; cheap, as most calls do not look."""
        if self._analysed is None or not self._looking.acquire(blocking=False):
            return False
        try:
            return self._now() >= self._next_look and self._look()
        finally:
            self._looking.release()

    def _look(self) -> bool:
        began = self._now()
        state = self._state(self._path)
        now = self._now()
        self._next_look = now + max(LEAST_S, LOOKS_SHARE * (now - began))
        stands_still, self._last = state == self._last, state
        if state == self._analysed:
            self._restless_since = None
            return False
        if self._restless_since is None:
            self._restless_since = now
        is_due = stands_still or now - self._restless_since >= PATIENCE_S
        return is_due and now >= self._next_analysis
