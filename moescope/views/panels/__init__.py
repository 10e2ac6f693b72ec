"""What every page and report section is made of: a title, a one-sentence reading, tables, or why there is nothing.

Panels hold values; :mod:`moescope.views.figures` (dashboard) and :mod:`moescope.report` draw them. The functions that
make them from an :class:`~moescope.views.model.Analysis` are in the modules beside this one.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from moescope.views.model import Analysis
from moescope.views.text import FORMATS, printable

Cell = None | bool | int | float | str
_UNITS = {"duration": "_ns", "ms": "_ns", "bytes": "_bytes", "percent": "_share"}


@dataclass(frozen=True, slots=True)
class Column:
    """A table column; ``kind`` is a key of :data:`moescope.views.text.FORMATS`."""

    title: str
    kind: str = "text"

    @property
    def numeric(self) -> bool:
        """Whether values are right-aligned."""
        return self.kind not in ("text", "id")

    def show(self, value: Cell) -> str:
        """``value`` as text."""
        return FORMATS[self.kind](value)


@dataclass(frozen=True, slots=True)
class Table:
    """Raw values by row; formatting happens where they are shown."""

    key: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""

    def to_csv(self) -> str:
        """Raw values as CSV with the unit in the header; text that a spreadsheet would take for a formula is quoted."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([c.title + (f" [{_UNITS[c.kind][1:]}]" if c.kind in _UNITS else "") for c in self.columns])
        writer.writerows([_safe(cell) for cell in row] for row in self.rows)
        return out.getvalue()


def _safe(cell: Cell) -> Cell:
    if not isinstance(cell, str):
        return cell
    return ("'" if cell.lstrip()[:1] in ("=", "+", "-", "@", "\t", "\r") else "") + printable(cell, keep_breaks=True)


@dataclass(frozen=True, slots=True)
class Empty:
    """Why a panel shows nothing, and what to record to fill it."""

    missing: str
    how_to_record: str


@dataclass(frozen=True, slots=True)
class Matrix:
    """Values by row and column for heat maps; ``None`` where nothing was observed."""

    row_name: str
    column_name: str
    rows: tuple[int | str, ...]
    columns: tuple[int | str, ...]
    values: tuple[tuple[float | None, ...], ...]
    kind: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One question with its answer; exactly one of ``tables`` and ``empty`` is filled."""

    key: str
    title: str
    question: str
    reading: str = ""
    tables: tuple[Table, ...] = ()
    empty: Empty | None = None
    notes: tuple[str, ...] = field(default=())


def step_ns(analysis: Analysis, step: int | None = None) -> float:
    """Mean over the profiled steps (or one) of the longest rank's window; 0 where no step was found."""
    return mean(s.window_ns for s in analysis.steps if step is None or s.step == step)


def mean(values: Iterable[float]) -> float:
    """Arithmetic mean; 0 of nothing."""
    items = list(values)
    return sum(items) / len(items) if items else 0.0


def mean_by(pairs: Iterable[tuple[int, float]]) -> dict[int, float]:
    """Mean of the values of each key, sorted by key."""
    groups: dict[int, list[float]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return {key: mean(groups[key]) for key in sorted(groups)}


def spread(count: int, always: Sequence[int], most: int = 32) -> list[int]:
    """At most ``most`` of ``range(count)``: those in ``always`` first, the others evenly spread."""
    if count <= most:
        return list(range(count))
    kept = set(list(always)[:most])
    others = [i for i in range(count) if i not in kept]
    room = most - len(kept)
    kept.update(others[i * len(others) // room] for i in range(room))
    return sorted(kept)
