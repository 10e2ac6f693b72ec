"""The Python API: a run, opened once, as dataclasses, polars frames and Plotly figures.

run = moescope.open("runs/x")
run.findings[0].claim
run.table("waits").group_by("rank").agg(pl.col("removable_wait_ns").sum())
run.figure("parts").show()
run.events(rank=0).filter(pl.col("kind") == "communication")
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from moescope.errors import DataMissingError, UnknownNameError
from moescope.findings import Finding
from moescope.trace import RankTrace, TraceDirectory, open_directory
from moescope.views.build import analyze
from moescope.views.catalog import PANELS
from moescope.views.frames import TABLES, frame
from moescope.views.inventory import Inventory, take_inventory
from moescope.views.json import to_json
from moescope.views.model import Analysis, Json
from moescope.views.panels import Panel
from moescope.views.questions import Question, questions

if TYPE_CHECKING:
    from moescope.views.figures.catalog import Figure


class Run:
    """A folder of traces and its analysis, made when first asked for."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        hosts: Sequence[Sequence[int]] | None = None,
        rank_regex: str | None = None,
        workers: int | None = None,
        cache: bool = True,
        baseline: str | os.PathLike[str] | None = None,
        progress: Callable[[int, int, str], None] | None = None,
    ) -> None:
        """See :func:`moescope.open`."""
        self.path = Path(path)
        self._hosts, self._rank_regex, self._workers = hosts, rank_regex, workers
        self._cache, self._progress = cache, progress
        self._baseline = Path(baseline) if baseline is not None else None

    def __repr__(self) -> str:
        return f"moescope.open({str(self.path)!r})"

    @cached_property
    def analysis(self) -> Analysis:
        """Everything the command line, the report and the dashboard show."""
        return analyze(
            self.path,
            hosts=self._hosts,
            rank_regex=self._rank_regex,
            workers=self._workers,
            cache=self._cache,
            baseline=self._baseline,
            progress=self._progress,
        )

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The verdict, gravest first."""
        return self.analysis.findings

    @property
    def tables(self) -> tuple[str, ...]:
        """Names that :meth:`table` takes."""
        return tuple(TABLES)

    def table(self, name: str) -> pl.DataFrame:
        """Return one table of the analysis; its columns are those of ``moescope.views.model``, units in the names.

        Raises :class:`moescope.errors.UnknownNameError` for a name that is not in :attr:`tables`.
        """
        if name not in TABLES:
            raise UnknownNameError(name, "table", TABLES)
        return frame(self.analysis, name)

    @property
    def panels(self) -> tuple[str, ...]:
        """Names that :meth:`panel` takes; most of them have a figure too."""
        return tuple(PANELS)

    def panel(self, name: str) -> Panel:
        """Return what a page shows under a title: its one-sentence reading and its tables, or why it is empty.

        Raises :class:`moescope.errors.UnknownNameError` for a name that is not in :attr:`panels`.
        """
        if name not in PANELS:
            raise UnknownNameError(name, "panel", PANELS)
        return PANELS[name](self.analysis)

    def figure(self, name: str, theme: str = "light") -> Figure:
        """Return the Plotly figure of a panel, as the dashboard draws it; ``theme``: ``light`` or ``dark``.

        Raises :class:`moescope.errors.UnknownNameError` for a panel without one, ``ValueError`` where the run has
        nothing to draw in it.
        """
        from moescope.views.figures.catalog import FIGURES  # noqa: PLC0415 - Plotly takes a while

        if name not in FIGURES:
            raise UnknownNameError(name, "figure", FIGURES)
        return FIGURES[name](self.analysis, theme)

    def json(self, with_: Collection[str] = ()) -> dict[str, Json]:
        """Return what ``moescope analyze --json --with ...`` prints."""
        return to_json(self.analysis, with_)

    def inventory(self) -> Inventory:
        """Return what the folder holds and lacks, as ``moescope doctor`` shows it."""
        return take_inventory(self.path, rank_regex=self._rank_regex, workers=self._workers, progress=self._progress)

    def questions(self) -> tuple[Question, ...]:
        """Return which questions the folder can answer, and how to record what the others need."""
        return questions(self.inventory())

    @cached_property
    def directory(self) -> TraceDirectory:
        """The traces as they were read, each on its own clock."""
        return open_directory(self.path, rank_regex=self._rank_regex, workers=self._workers, progress=self._progress)

    def events(self, rank: int, window: int = 0) -> pl.DataFrame:
        """Return all complete events of one rank's window, sorted by ``start_ns``, on the rank's own clock.

        Raises :class:`moescope.errors.DataMissingError` where the folder has no such trace.
        """
        return self._trace(rank, window).events()

    def _trace(self, rank: int, window: int) -> RankTrace:
        for trace in self.directory.ranks:
            if (trace.rank, trace.window) == (rank, window):
                return trace
        present = sorted({trace.rank for trace in self.directory.ranks})
        raise DataMissingError(f"{self.path} has no trace of rank {rank}, window {window}", hint=f"ranks: {present}")
