"""The pages, each a function of an analysis; the timeline is a canvas that draws itself."""

from __future__ import annotations

from dataclasses import dataclass

from moescope.views.model import Analysis


@dataclass(frozen=True, slots=True)
class View:
    """What a page is asked to show."""

    analysis: Analysis
    slug: str
    theme: str
    """``light`` or ``dark``."""
    rank: int | None = None
    layer: int | None = None
    step: int | None = None
    other: Analysis | None = None
    """Of a comparison: run B."""
    other_slug: str = ""
    others: tuple[tuple[str, str], ...] = ()
    """Slug and name of all other served runs."""
    everyone: tuple[tuple[str, Analysis], ...] = ()
    """Of a comparison where more than two runs are served and analysed: slug and analysis of each."""
