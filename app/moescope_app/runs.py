"""The folders that are served, and their analyses: made in the background, one after another, with progress."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from moescope.errors import MoescopeError
from moescope.views.model import Analysis
from moescope.views.timeline import Timeline
from moescope_app.watch import Watch

Progress = Callable[[int, int, str], None]
Analyze = Callable[[Path, Progress], Analysis]
OpenTimeline = Callable[[Path, Analysis], Timeline]


class AnalysisCancelledError(Exception):
    """Raised inside an analysis, by its progress function, when the user gave up waiting."""


@dataclass(frozen=True, slots=True)
class Status:
    """Where one folder's analysis stands."""

    state: str
    """``waiting``, ``running``, ``done``, ``failed`` or ``cancelled``."""
    done: int = 0
    total: int = 0
    label: str = ""
    message: str = ""
    """Of a failure: what went wrong."""
    hint: str = ""

    @property
    def pending(self) -> bool:
        """Whether it may still become ``done`` by itself."""
        return self.state in ("waiting", "running")


class Run:
    """One folder: its short name in addresses, and its analysis once there is one."""

    def __init__(self, slug: str, path: Path) -> None:
        self.slug = slug
        self.path = path
        self.analysis: Analysis | None = None
        self.timeline: Timeline | None = None
        self.status = Status("waiting")
        self.cancelled = threading.Event()
        self.watch = Watch(path)
        self.generation = 0
        """How many analyses have succeeded."""

    @property
    def version(self) -> str:
        """Changes when a page about this run would show something else."""
        return f"{self.slug}.{self.generation}" + (f".{self.status.state}" if self.analysis is None else "")


class Runs:
    """The served folders. Addresses name them by slug, so that no request can name a path."""

    def __init__(self, paths: Sequence[Path], analyze: Analyze, open_timeline: OpenTimeline) -> None:
        self._analyze = analyze
        self._open_timeline = open_timeline
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._queue: list[Run] = []
        self._runs: dict[str, Run] = {}
        for path in paths:
            slug = _slug(path, self._runs)
            self._runs[slug] = Run(slug, path)
        self._thread = threading.Thread(target=self._work, name="moescope-analysis", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs.values())

    def get(self, slug: str) -> Run | None:
        """The run of that name."""
        return self._runs.get(slug)

    def timeline(self, slug: str) -> Timeline:
        """The timeline of an analysed run, opened when first asked for; KeyError where there is none."""
        run = self._runs[slug]
        with self._opening:
            if run.timeline is None:
                if run.analysis is None:
                    raise KeyError(slug)
                run.timeline = self._open_timeline(run.path, run.analysis)
            return run.timeline

    def first(self) -> Run:
        """The folder named first."""
        return next(iter(self._runs.values()))

    def ask(self, run: Run) -> Status:
        """Queue the analysis unless it is done, under way or ended badly; return where it stands."""
        with self._lock:
            if run.status.state == "waiting" and run not in self._queue:
                self._queue.append(run)
                self._wake.notify()
            return run.status

    def again(self, run: Run) -> None:
        """Analyse anew, for example after a failure or when a new trace has landed."""
        with self._lock:
            if not run.status.pending:
                run.cancelled.clear()
                run.status = Status("waiting")
        self.ask(run)

    def look(self, run: Run) -> None:
        """Analyse anew where the folder has changed since; what is known stays on show meanwhile."""
        if not run.status.pending and run.status.state != "cancelled" and run.watch.has_changed():
            self.again(run)

    def cancel(self, run: Run) -> None:
        """Stop a running or queued analysis at its next sign of progress."""
        with self._lock:
            if run in self._queue:
                self._queue.remove(run)
                run.status = Status("cancelled")
            elif run.status.state == "running":
                run.cancelled.set()

    def _work(self) -> None:
        while True:
            with self._lock:
                while not self._queue:
                    self._wake.wait()
                run = self._queue.pop(0)
                run.status = Status("running")
            self._analyse(run)

    def _analyse(self, run: Run) -> None:
        def show(done: int, total: int, label: str) -> None:
            if run.cancelled.is_set():
                raise AnalysisCancelledError
            run.status = replace(run.status, done=done, total=total, label=label)

        run.watch.begin()
        try:
            analysis = self._analyze(run.path, show)
        except (AnalysisCancelledError, KeyboardInterrupt):  # polars raises Ctrl-C in whichever thread it runs
            run.status = Status("cancelled")
        except MoescopeError as error:
            run.status = Status("failed", message=error.message, hint=error.hint)
        except Exception as error:
            hint = "This is a defect of moescope; moescope analyze DIR shows where."
            run.status = Status("failed", message=f"{type(error).__name__}: {error}", hint=hint)
        else:
            with self._opening:
                run.analysis, run.timeline = analysis, None
                run.generation += 1
            run.status = Status("done")
            threading.Thread(target=self._warm, args=(run.slug,), name="moescope-timeline", daemon=True).start()
        finally:
            run.watch.end()

    def _warm(self, slug: str) -> None:
        """Open the timeline ahead, so that its first tile comes at once."""
        try:
            self.timeline(slug)
        except (MoescopeError, OSError) as error:
            logging.getLogger(__name__).warning("the timeline of %s could not be read ahead: %s", slug, error)


def _slug(path: Path, taken: dict[str, Run]) -> str:
    base = re.sub(r"[^a-z0-9._-]+", "-", path.resolve().name.lower()).strip("-.") or "run"
    slug, number = base, 2
    while slug in taken:
        slug, number = f"{base}-{number}", number + 1
    return slug
