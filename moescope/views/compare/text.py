"""A comparison in words: which figures are large enough to show, and how their values are written."""

from __future__ import annotations

from moescope.views.compare import Change, Comparison
from moescope.views.text import duration, percent, significant, size

MISFIT = "The runs differ in kind, so that their difference says little about a change:"
MANY_TIMES = 5.0
SMALL_SHARE_OF_STEP = 0.002
"""A part of the step below this share in both runs is left to ``--json``."""


def summary(comparison: Comparison) -> str:
    """Return the answer in a line: is B's step shorter, and is that more than noise?"""
    step = next((change for change in comparison.changes if change.metric == "step_ns"), None)
    if step is None or step.difference is None or step.relative is None:
        return "The runs share no step to compare."
    way = "longer" if step.difference > 0 else "shorter"
    noise = "no noise band: single steps" if step.noise is None else f"noise ±{duration(step.noise)}"
    change = "the same" if not step.difference else f"{duration(abs(step.difference))} {way} ({percent(step.relative)})"
    return f"B's step is {change}: {step.verdict}, {noise}"


def is_shown(change: Change, comparison: Comparison) -> bool:
    """Return whether a figure is large enough for the table."""
    if not change.metric.startswith("part_ns:"):
        return True
    step = next((other for other in comparison.changes if other.metric == "step_ns"), None)
    whole = max(step.a or 0, step.b or 0) if step is not None else 0
    return max(change.a or 0, change.b or 0) >= SMALL_SHARE_OF_STEP * whole


def value_text(metric: str, value: float | None) -> str:
    """Return a value in the unit its metric's name states."""
    if value is None:
        return "–"
    if metric.endswith("_ns") or metric.startswith("part_ns:"):
        return duration(round(value))
    return size(value) if metric.endswith("_bytes") else significant(value)


def relative_text(relative: float) -> str:
    """Return a relative difference in percent, and as a multiple where percents stop being readable."""
    return percent(relative) if relative < MANY_TIMES - 1 else f"{significant(relative + 1)}×"


def metric_name(metric: str) -> str:
    """``metric`` for people, without its unit: ``part_ns:comm.all_to_all.transfer`` is ``all-to-all transfer``."""
    if metric.startswith("part_ns:"):
        family, _, rest = metric.removeprefix("part_ns:").partition(".")
        name = rest if family in ("compute", "comm") else f"{family}: {rest}"
    else:
        name = metric.removesuffix("_ns").removesuffix("_bytes")
    words = name.replace("all_to_all", "all-to-all").replace(".", " ").replace("_", " ")
    return words.replace("gemm", "GEMM").replace("maxvio", "MaxVio")
