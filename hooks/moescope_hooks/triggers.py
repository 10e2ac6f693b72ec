"""Windows on demand: a signal or a file asks for one, and all ranks agree on its steps.

A thread looks every half second whether one was asked for, on this rank or on another, so the training thread does no
more than note its step. The first rank to notice announces in the store of the process group a window that lies far
enough ahead for all to have looked by then.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Any

from moescope_hooks.background import Background
from moescope_hooks.schedule import MAX_STEPS, Schedule, Window
from moescope_hooks.writer import Gaps

POLL_SECONDS = 0.5
LEAD_POLLS = 2.5
"""How long before a window begins it is announced, in looks of the other ranks."""
_observations = itertools.count()


class Triggers:
    """What was asked for while the job runs; nothing here raises into the training thread."""

    def __init__(
        self,
        schedule: Schedule,
        rank: int,
        gaps: Gaps,
        *,
        first_number: int = 0,
        store: Any = None,
        poll_seconds: float | None = None,
    ) -> None:
        """``first_number``: of the first window; ``store``: of the process group, None for a job of one rank."""
        self._schedule = schedule
        self._rank = rank
        self._number = first_number
        self._num_taken = 0
        self._store = store
        self._gaps = gaps
        self._poll_seconds = POLL_SECONDS if poll_seconds is None else poll_seconds
        self._key = f"moescope/windows/{next(_observations)}"
        self._asked = False
        self._file = None if schedule.on_file is None else Path(schedule.on_file)
        self._seen = self._file_state()
        self._window: Window | None = None
        self._step: int | None = None
        self._step_began = time.monotonic()
        self._step_seconds = 0.0
        self._previous_handler: Callable[[int, FrameType | None], Any] | int | None = None
        self._handles_signal = False
        self._stop = threading.Event()
        self._install_handler()
        self._thread = Background(self._watch, "moescope-triggers", daemon=True)
        self._thread.start()

    def window_at(self, step: int) -> Window | None:
        """The window that ``step``, which begins now, lies in."""
        now = time.monotonic()
        self._step_seconds, self._step_began = now - self._step_began, now
        self._step = step
        window = self._window
        return window if window is not None and window.covers(step, self._rank) else None

    def close(self) -> None:
        """Stop looking, and give the signal back to whom it belonged."""
        self._stop.set()
        self._thread.wait(5)
        number = self._schedule.on_signal
        if self._handles_signal and number is not None and signal.getsignal(number) == self._on_signal:
            signal.signal(number, self._previous_handler)

    def _install_handler(self) -> None:
        number = self._schedule.on_signal
        if number is None:
            return
        previous = signal.getsignal(number)
        if previous is None or threading.current_thread() is not threading.main_thread():
            reason = (
                "its handler is not Python's" if previous is None else "observe() was not entered by the main thread"
            )
            self._gaps.add(f"windows on signal {number}", reason)
            return
        self._previous_handler = previous
        signal.signal(number, self._on_signal)
        signal.siginterrupt(number, False)  # system calls of the trainer go on
        self._handles_signal = True

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        if callable(self._previous_handler):
            self._previous_handler(number, frame)

    def _watch(self) -> None:
        while not self._stop.wait(self._poll_seconds):
            try:
                self._look()
            except Exception as error:  # the store is gone with rank 0, say
                self._gaps.add("windows on demand", error)
                return

    def _look(self) -> None:
        if self._step is None:
            return
        self._adopt()
        wish = self._wish()
        if wish is None or (self._window is not None and self._step < self._window.end):
            return  # asked again before the window that was asked for is over: the same request
        announced = json.dumps(asdict(self._next_window(wish, self._step)))
        if self._store is not None:
            announced = self._store.compare_set(self._window_key(), "", announced).decode()
        self._take(announced)

    def _adopt(self) -> None:
        while self._store is not None and self._store.check([self._window_key()]):
            self._take(self._store.get(self._window_key()).decode())

    def _window_key(self) -> str:
        return f"{self._key}/{self._num_taken}"

    def _take(self, announced: str) -> None:
        fields = json.loads(announced)
        window = Window(**{**fields, "ranks": None if fields["ranks"] is None else tuple(fields["ranks"])})
        self._num_taken += 1
        self._number = window.number + 1
        concerned = window.ranks is None or self._rank in window.ranks
        if concerned and self._step is not None and self._step >= window.start:
            self._gaps.add(f"the start of window {window.number}", f"step {self._step} had begun when it was announced")
        self._window = window

    def _wish(self) -> Schedule | None:
        """What was asked for since the last look, or None."""
        asked, self._asked = self._asked, False
        state = self._file_state()
        appeared, self._seen = state is not None and state != self._seen, state
        if appeared:
            return self._from_file()
        return self._schedule if asked else None

    def _file_state(self) -> tuple[int, int] | None:
        if self._file is None:
            return None
        try:
            found = os.stat(self._file)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino

    def _from_file(self) -> Schedule:
        """The schedule with what the file says about steps and ranks."""
        assert self._file is not None
        try:
            text = self._file.read_text(encoding="utf-8").strip()
            said = json.loads(text) if text else {}
            steps = min(int(said.get("steps", self._schedule.steps)), MAX_STEPS)
            ranks = said.get("ranks", self._schedule.ranks)
            return replace(
                self._schedule, steps=steps, windows=1, ranks=None if ranks is None else tuple(map(int, ranks))
            )
        except (OSError, ValueError, TypeError, AttributeError) as error:
            self._gaps.add(f"what {self._file.name} says about the window", error)
            return self._schedule

    def _next_window(self, wish: Schedule, step: int) -> Window:
        """Not the next step: that may begin while this is being said."""
        lead = 0
        if self._store is not None:
            seconds = max(self._step_seconds, time.monotonic() - self._step_began, 1e-3)
            lead = math.ceil(LEAD_POLLS * self._poll_seconds / seconds)
        return Window(self._number, step + 2 + lead, wish.steps, wish.ranks)
