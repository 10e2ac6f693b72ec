"""Trace windows: one Kineto file per rank and window, exported and compressed off the training thread."""

from __future__ import annotations

import gzip
import json
import logging
import re
import shutil
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

from moescope_hooks.background import Background
from moescope_hooks.schedule import Schedule, Window
from moescope_hooks.triggers import Triggers
from moescope_hooks.windowsize import TraceSize
from moescope_hooks.writer import Gaps, write_atomically

COMPRESSION_LEVEL = 4
log = logging.getLogger("moescope")


def trace_path(out: Path, rank: int, window: int) -> Path:
    """Where the trace of one rank and window lies below the run directory."""
    suffix = f"-w{window}" if window else ""
    return out / "traces" / f"rank{rank}{suffix}.json.gz"


def next_number(out: Path, scheduled: int) -> int:
    """The first window number that neither the schedule has nor an earlier start of the same run used."""
    names = [re.fullmatch(r"rank\d+-w(\d+)\.json\.gz", path.name) for path in (out / "traces").glob("rank*-w*.json.gz")]
    return max([scheduled, *(int(name[1]) + 1 for name in names if name)])


class TraceWindows:
    """Starts and stops torch.profiler at step boundaries and marks each step as ``ProfilerStep#N``.

    N is the loop's own step number. ``tracing`` tells the ranges whether anything is being recorded.
    """

    def __init__(
        self,
        schedule: Schedule,
        out: Path,
        rank: int,
        *,
        facts: Mapping[str, Any],
        size: TraceSize,
        store: Any,
        gaps: Gaps,
    ) -> None:
        """``facts``: go into the file; ``store``: of the process group, None for a job of one rank."""
        self.schedule = schedule
        self.out = out
        self.rank = rank
        self.facts = dict(facts)
        self.size = size
        self.gaps = gaps
        self.tracing = False
        self._profiler: profile | None = None
        self._step_range: record_function | None = None
        self._window: Window | None = None
        self._last_step = 0
        self._started_at = 0.0
        self._over: set[int] = set()
        self._steps: list[int] = []
        self._exports: list[Background] = []
        on_demand = schedule.on_signal is not None or schedule.on_file is not None
        number = next_number(out, 0 if schedule.start is None else schedule.windows)
        self._triggers = Triggers(schedule, rank, gaps, first_number=number, store=store) if on_demand else None

    def begin_step(self, step: int, microbatches: int) -> None:
        """Start, stop or warm up the profiler as asked for ``step``, then open the step's range.

        ``microbatches``: of the step before, to know how large the trace may become.
        """
        window = self._window_at(step)
        if self.tracing and (window is None or window != self._window or self._is_full(step)):
            self._stop()
        if window is not None and not self.tracing and window.number not in self._over:
            self._start(window, step, microbatches)
        if self._profiler is None and self._scheduled_at(step + 1):
            self._profiler = self._make()
            self._profiler.prepare_trace()
        if self.tracing:
            self._steps.append(step)
            self._step_range = record_function(f"ProfilerStep#{step}")
            self._step_range.__enter__()  # type: ignore[no-untyped-call]

    def end_step(self) -> None:
        """Close the step's range."""
        opened, self._step_range = self._step_range, None
        if opened is not None:
            opened.__exit__(None, None, None)

    def close(self, timeout_s: float = 300.0) -> None:
        """Stop recording and wait for the files."""
        try:
            self.end_step()
            if self.tracing:
                self._stop()
        finally:  # an interrupt meanwhile costs the trace, and is no reason to keep the signal
            if self._triggers is not None:
                self._triggers.close()
        for export in self._exports:
            if not export.wait(timeout_s):
                self.gaps.add("a trace", f"not written within {timeout_s:.0f} s")

    def _window_at(self, step: int) -> Window | None:
        asked = self._triggers.window_at(step) if self._triggers is not None else None
        return self._scheduled_at(step) or asked

    def _scheduled_at(self, step: int) -> Window | None:
        window = self.schedule.window_of(step)
        return window if window is not None and window.covers(step, self.rank) else None

    def _make(self) -> profile:
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        schedule = self.schedule
        return profile(
            activities=activities,
            record_shapes=schedule.record_shapes,
            profile_memory=schedule.profile_memory,
            with_stack=schedule.with_stack,
        )

    def _start(self, window: Window, step: int, microbatches: int) -> None:
        per_step = self.size.per_step(microbatches)
        steps = max(1, min(window.end - step, self.schedule.max_bytes // max(1, per_step)))
        free = shutil.disk_usage(self.out).free
        if free < per_step * steps:
            self._over.add(window.number)
            self.gaps.add(f"window {window.number}", f"about {per_step * steps:,} bytes, and {free:,} are free")
            return
        if steps < window.end - step:
            self.gaps.add(f"steps of window {window.number} from {step + steps} on", "above Schedule.max_bytes")
        log.info(
            "moescope rank %d: window %d records steps %d to %d, about %.0f MB before compression, %.0f s at most",
            *(self.rank, window.number, step, step + steps - 1, per_step * steps / 1e6, self.schedule.max_seconds),
        )
        if self._profiler is None:
            self._profiler = self._make()
            self._profiler.prepare_trace()
        self._profiler.start_trace()
        self._window, self._steps, self.tracing = window, [], True
        self._started_at, self._last_step = time.monotonic(), step + steps - 1

    def _is_full(self, step: int) -> bool:
        """Whether the window under way is not to go on with ``step``; it will not begin again."""
        assert self._window is not None
        late = time.monotonic() - self._started_at > self.schedule.max_seconds
        if late:
            self.gaps.add(f"steps of window {self._window.number} from {step} on", "above Schedule.max_seconds")
        if late or step > self._last_step:
            self._over.add(self._window.number)
            return True
        return False

    def _stop(self) -> None:
        profiler, self._profiler, self.tracing = self._profiler, None, False
        if profiler is None or self._window is None:
            return
        facts = {**self.facts, "rank": self.rank, "window": self._window.number, "steps": self._steps}
        try:
            profiler.add_metadata_json("moescope", json.dumps(facts))
        finally:
            profiler.stop_trace()
        path, steps = trace_path(self.out, self.rank, self._window.number), len(self._steps)
        export = Background(partial(self._export, profiler, path, steps), "moescope-trace")
        export.start()
        self._exports.append(export)

    def _export(self, profiler: profile, path: Path, steps: int) -> None:
        plain = path.with_name(f".{path.name.removesuffix('.gz')}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(plain))
            self.size.learn(plain.stat().st_size, steps)
            write_atomically(path, lambda beside: _compress(plain, beside))
        except Exception as error:  # a full disk, a vanished path: the training goes on without this trace
            self.gaps.add(f"the trace {path.name}", error)
        finally:
            plain.unlink(missing_ok=True)


def _compress(plain: Path, target: Path) -> None:
    with plain.open("rb") as source, gzip.open(target, "wb", compresslevel=COMPRESSION_LEVEL) as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
