"""One offline HTML file with everything an analysis says."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from moescope.errors import MoescopeError
from moescope.outputs import REPORT, check_place
from moescope.report.page import DEFAULT_BUDGET_BYTES, render
from moescope.report.redact import hider, redact
from moescope.views.model import Analysis
from moescope.views.timeline import Timeline

__all__ = ["DEFAULT_BUDGET_BYTES", "Written", "redact", "render", "write_report"]

OpenTimeline = Callable[[Analysis, Callable[[str], str]], Timeline]


@dataclass(frozen=True, slots=True)
class Written:
    """What came of writing a report."""

    size_bytes: int
    cuts: tuple[str, ...]
    """What was left out to keep to the budget, in words."""


def write_report(
    analysis: Analysis,
    path: Path,
    *,
    force: bool = False,
    hide_names: bool = True,
    budget_bytes: int = DEFAULT_BUDGET_BYTES,
    open_timeline: OpenTimeline | None = None,
) -> Written:
    """Write the report to ``path``; return its size and what was cut from it.

    An existing report is replaced only with ``force``, any other file never; the file appears whole or not at all.
    Host names and directories are taken out unless ``hide_names`` is false, of the timeline too. ``open_timeline`` is
    given the analysis as it is shown and what to do to names.
    """
    check_place(path, REPORT, force=force)
    hide = hider(analysis) if hide_names else str
    shown = redact(analysis) if hide_names else analysis
    timeline = open_timeline(shown, hide) if open_timeline is not None else None
    page = render(shown, budget_bytes=budget_bytes, timeline=timeline)
    content = page.text.encode()
    write_whole(path, content)
    return Written(len(content), page.cuts)


def write_whole(path: Path, content: bytes) -> None:
    """Write beside ``path``, then rename, so that no half-written file survives."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    except OSError as error:
        raise MoescopeError(
            f"Can't write {path}: {error.strerror}.",
            hint="Choose a folder that exists and is writable.",
            code="unwritable",
        ) from error
    beside = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        beside.chmod(0o644)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
