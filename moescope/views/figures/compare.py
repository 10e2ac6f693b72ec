"""Plotly figures of two runs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from moescope.views import palette
from moescope.views.compare import Comparison
from moescope.views.compare.text import metric_name
from moescope.views.figures import bar_height, marker_of, plain, styled
from moescope.views.model import Analysis
from moescope.views.palette import THEMES, Theme
from moescope.views.panels.compare import PARTS, time_changes
from moescope.views.panels.runs import mean_groups_ns
from moescope.views.text import duration, percent

_VERDICT_COLOURS = {"better": 2, "worse": 1}
"""Verdict -> its place in ``Theme.lines``; all others are grey."""
_OF_THE_RUN = ("time_to_shared_loss_ns",)
"""Durations of many steps, beside which a step's would not be seen; the table has them."""


def sides_figure(comparison: Comparison, theme_name: str = "light") -> go.Figure:
    """The parts of the step of both runs, mean over ranks and steps, one stacked bar each; waits hatched."""
    theme = THEMES[theme_name]
    parts = [c for c in comparison.changes if c.metric.startswith(PARTS)]
    if not parts:
        raise ValueError("no parts of the step")
    sides = [
        palette.grouped({c.metric.removeprefix(PARTS): getattr(c, side) or 0.0 for c in parts}) for side in ("a", "b")
    ]
    names = [f"A: {plain(comparison.a.name)}", f"B: {plain(comparison.b.name)}"]
    return _stacked(sides, ["A", "B"], names, theme)


def runs_figure(analyses: Sequence[Analysis], theme_name: str = "light") -> go.Figure:
    """The parts of the step of every run, mean over ranks and steps, one stacked bar each; waits hatched."""
    labels = [f"{number}: {plain(one.name)}" for number, one in enumerate(analyses, start=1)]
    return _stacked([mean_groups_ns(one) for one in analyses], labels, labels, THEMES[theme_name])


def _stacked(sums: Sequence[Mapping[str, float]], labels: list[str], names: list[str], theme: Theme) -> go.Figure:
    """One bar per run from its time by palette group; ``labels`` stand beside the bars, ``names`` in what hovers."""
    wholes = [sum(groups.values()) for groups in sums]
    figure = go.Figure()
    for group in palette.GROUPS:
        values = [groups[group.key] for groups in sums]
        if not any(values):
            continue
        hover = [
            f"{name}<br>{group.label}: {duration(value)}, {percent(value / whole if whole else 0.0)}"
            for name, value, whole in zip(names, values, wholes, strict=True)
        ]
        figure.add_bar(
            y=labels, x=[value / 1e6 for value in values], orientation="h", name=group.label, text=hover,
            textposition="none", hovertemplate="%{text}<extra></extra>",
            marker=marker_of(group.hatched, theme.group(group)),
        )  # fmt: skip
    if not figure.data:
        raise ValueError("no parts of the step")
    figure.update_layout(barmode="stack", bargap=0.25)
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    figure.update_xaxes(title_text="ms per step, mean over ranks", rangemode="tozero")
    return styled(figure, theme, bar_height(len(labels)) + 74)


def differences_figure(comparison: Comparison, theme_name: str = "light") -> go.Figure:
    """B - A of every duration with the band that noise between steps explains."""
    theme = THEMES[theme_name]
    changes = [c for c in time_changes(comparison) if c.difference is not None and c.metric not in _OF_THE_RUN]
    if not changes:
        raise ValueError("no duration that both runs have")
    texts = [
        f"{metric_name(c.metric)}: {duration(c.difference)}, {c.verdict}"
        + ("" if c.noise is None else f", noise ±{duration(c.noise)}")
        for c in changes
    ]
    colours = [theme.lines[_VERDICT_COLOURS.get(c.verdict, 7)] for c in changes]
    figure = go.Figure(
        go.Bar(
            y=[metric_name(c.metric) for c in changes], x=[(c.difference or 0.0) / 1e6 for c in changes],
            orientation="h", marker={"color": colours, "line": {"width": 0}}, text=texts, textposition="none",
            hovertemplate="%{text}<extra></extra>",
            error_x={"type": "data", "array": [(c.noise or 0.0) / 1e6 for c in changes], "color": theme.text,
                     "thickness": 1.2, "width": 3},
        )
    )  # fmt: skip
    figure.update_layout(bargap=0.25)
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    figure.update_xaxes(title_text="B - A in ms per step; green: better, orange: worse; lines: noise between steps")
    styled(figure, theme, bar_height(len(changes)), legend=False, left=180)
    return figure.update_xaxes(zeroline=True, zerolinecolor=theme.muted)
