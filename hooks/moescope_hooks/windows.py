"""Trace windows: one Kineto file per rank and window, exported and compressed off the training thread."""

from __future__ import annotations

import gzip
import json
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

from moescope_hooks.schedule import Schedule
from moescope_hooks.writer import Gaps, write_atomically

COMPRESSION_LEVEL = 4


def trace_path(out: Path, rank: int, window: int) -> Path:
    """Where the trace of one rank and window lies below the run directory."""
    suffix = f"-w{window}" if window else ""
    return out / "traces" / f"rank{rank}{suffix}.json.gz"


class TraceWindows:
    """Starts and stops torch.profiler at step boundaries and marks each step as ``ProfilerStep#N``.

    N is the loop's own step number. ``tracing`` tells the ranges whether anything is being recorded.
    """

    def __init__(self, schedule: Schedule, out: Path, rank: int, facts: Mapping[str, Any], gaps: Gaps) -> None:
        self.schedule = schedule
        self.out = out
        self.rank = rank
        self.facts = dict(facts)
        self.gaps = gaps
        self.tracing = False
        self._profiler: profile | None = None
        self._step_range: record_function | None = None
        self._window = 0
        self._steps: list[int] = []
        self._exports: list[threading.Thread] = []

    def begin_step(self, step: int) -> None:
        """Start, stop or warm up the profiler as the schedule says for ``step``, then open the step's range."""
        window = self.schedule.window_of(step) if self.schedule.records(self.rank) else None
        if self.tracing and window != self._window:
            self._stop()
        if window is not None and not self.tracing:
            self._start(window)
        if window is None and self._profiler is None and self._starts_at(step + 1):
            self._profiler = self._make()
            self._profiler.prepare_trace()
        if self.tracing:
            self._steps.append(step)
            self._step_range = record_function(f"ProfilerStep#{step}")
            self._step_range.__enter__()  # type: ignore[no-untyped-call]

    def end_step(self) -> None:
        """Close the step's range."""
        if self._step_range is not None:
            self._step_range.__exit__(None, None, None)
            self._step_range = None

    def close(self, timeout_s: float = 300.0) -> None:
        """Stop recording and wait for the files."""
        self.end_step()
        if self.tracing:
            self._stop()
        for export in self._exports:
            export.join(timeout_s)
            if export.is_alive():
                self.gaps.add("a trace", f"not written within {timeout_s:.0f} s")

    def _starts_at(self, step: int) -> bool:
        return self.schedule.records(self.rank) and self.schedule.window_of(step) is not None

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

    def _start(self, window: int) -> None:
        if self._profiler is None:
            self._profiler = self._make()
            self._profiler.prepare_trace()
        self._profiler.start_trace()
        self._window, self._steps, self.tracing = window, [], True

    def _stop(self) -> None:
        profiler, self._profiler, self.tracing = self._profiler, None, False
        if profiler is None:
            return
        facts = {**self.facts, "rank": self.rank, "window": self._window, "steps": self._steps}
        profiler.add_metadata_json("moescope", json.dumps(facts))
        profiler.stop_trace()
        path = trace_path(self.out, self.rank, self._window)
        export = threading.Thread(target=self._export, args=(profiler, path), name="moescope-trace")
        export.start()
        self._exports.append(export)

    def _export(self, profiler: profile, path: Path) -> None:
        plain = path.with_name(f".{path.name.removesuffix('.gz')}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(plain))
            write_atomically(path, lambda beside: _compress(plain, beside))
        except Exception as error:  # a full disk, a vanished path: the training goes on without this trace
            self.gaps.add(f"the trace {path.name}", error)
        finally:
            plain.unlink(missing_ok=True)


def _compress(plain: Path, target: Path) -> None:
    with plain.open("rb") as source, gzip.open(target, "wb", compresslevel=COMPRESSION_LEVEL) as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
