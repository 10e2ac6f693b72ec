"""The tabs in their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dash import html

from moescope_app.pages import View, communication, compare, gemm, host, load, memory, run, steps, timeline, verdict


@dataclass(frozen=True, slots=True)
class Tab:
    """A page and its name."""

    key: str
    title: str
    render: Callable[[View], html.Div]


TABS: Mapping[str, Tab] = {
    tab.key: tab
    for tab in (
        Tab("verdict", "Verdict", verdict.render),
        Tab("timeline", "Timeline", timeline.render),
        Tab("load", "Load", load.render),
        Tab("communication", "Communication", communication.render),
        Tab("gemm", "GEMM", gemm.render),
        Tab("memory", "Memory", memory.render),
        Tab("host", "Host", host.render),
        Tab("steps", "Steps", steps.render),
        Tab("run", "Run", run.render),
        Tab("compare", "Compare", compare.render),
    )
}


def tabs_for(num_runs: int) -> list[Tab]:
    """The tabs that make sense where so many runs are served."""
    return [tab for tab in TABS.values() if tab.key != "compare" or num_runs > 1]
