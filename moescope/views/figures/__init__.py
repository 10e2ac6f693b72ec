"""Plotly figures of the panels, for the dashboard and notebooks: one template, light or dark, one palette.

Each function takes an :class:`~moescope.views.model.Analysis` and a theme name and returns a figure; it raises
``ValueError`` where the panel of the same name is empty, so ask the panel first. Recorded names are escaped: Plotly
would take markup in them for its own.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

import plotly.graph_objects as go

from moescope.views import palette
from moescope.views.model import Analysis
from moescope.views.palette import THEMES, Theme
from moescope.views.panels import spread
from moescope.views.panels.comm import rank_waits
from moescope.views.panels.step import RankParts, rank_parts, used_groups
from moescope.views.text import duration, percent

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif'
MOST_BARS = 48
CLEAR = "rgba(0,0,0,0)"


def plain(text: object) -> str:
    """``text`` as Plotly shows it unchanged."""
    return html.escape(str(text), quote=False)


def styled(figure: go.Figure, theme: Theme, height: int, *, legend: bool = True, left: int = 70) -> go.Figure:
    """Give ``figure`` the page's fonts, colours and margins."""
    figure.update_layout(
        height=height,
        autosize=True,
        margin={"l": left, "r": 24, "t": 34 if legend else 10, "b": 44},
        paper_bgcolor=CLEAR,
        plot_bgcolor=CLEAR,
        font={"family": FONT, "size": 12, "color": theme.text},
        showlegend=legend,
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "traceorder": "normal",
                "itemsizing": "constant"},
        hoverlabel={"font": {"family": FONT, "size": 12, "color": theme.surface}, "bgcolor": theme.text,
                    "bordercolor": theme.text, "align": "left", "namelength": -1},
        dragmode="zoom",
    )  # fmt: skip
    axis = {"gridcolor": theme.grid, "zeroline": False, "linecolor": theme.grid, "title_font_color": theme.muted,
            "tickfont": {"color": theme.muted}, "automargin": True}  # fmt: skip
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis)
    return figure


def bar_height(num_bars: int) -> int:
    """A height in pixels that leaves each bar readable."""
    return 110 + num_bars * (26 if num_bars <= 16 else 16)


def shown_rows(analysis: Analysis, ranks: Sequence[int], most: int = MOST_BARS) -> list[int]:
    """Which positions of ``ranks`` are drawn: all, or those that findings and causes name and an even choice."""
    named = {f.rank for f in analysis.findings} | {c.rank for c in analysis.causes}
    return spread(len(ranks), [i for i, rank in enumerate(ranks) if rank in named], most)


def _chosen_parts(analysis: Analysis, step: int | None) -> list[RankParts]:
    rows = rank_parts(analysis, step)
    if not rows:
        raise ValueError("no profiled step")
    return [rows[i] for i in shown_rows(analysis, [row.rank for row in rows])]


def parts_figure(analysis: Analysis, theme_name: str = "light", step: int | None = None) -> go.Figure:
    """The parts of the step, one stacked bar per rank; waits hatched."""
    theme = THEMES[theme_name]
    rows = _chosen_parts(analysis, step)
    labels = [f"rank {row.rank}" for row in rows]
    figure = go.Figure()
    for group in used_groups(rows):
        values = [row.groups_ns[group.key] for row in rows]
        hover = [
            f"rank {row.rank}, {plain(row.host)}<br>{group.label}: {duration(value)}, "
            f"{percent(value / row.window_ns if row.window_ns else 0.0)}"
            for row, value in zip(rows, values, strict=True)
        ]
        figure.add_bar(
            y=labels, x=[value / 1e6 for value in values], orientation="h", name=group.label, text=hover,
            textposition="none", hovertemplate="%{text}<extra></extra>",
            marker=marker_of(group.hatched, theme.group(group)),
        )  # fmt: skip
    figure.update_layout(barmode="stack", bargap=0.2)
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    figure.update_xaxes(title_text="ms per step", rangemode="tozero")
    return styled(figure, theme, bar_height(len(rows)) + 44)


def marker_of(hatched: bool, colour: str) -> dict[str, object]:
    """A bar filled with ``colour``, or hatched in it."""
    if not hatched:
        return {"color": colour, "line": {"width": 0}}
    pattern = {"shape": "/", "fgcolor": colour, "bgcolor": CLEAR, "size": 6, "solidity": 0.5,
               "fgopacity": 1, "fillmode": "overlay"}  # fmt: skip
    return {"color": CLEAR, "line": {"width": 0}, "pattern": pattern}


def waits_figure(analysis: Analysis, theme_name: str = "light", step: int | None = None) -> go.Figure:
    """Removable wait, other arrival wait and transfer, one stacked bar per rank."""
    theme = THEMES[theme_name]
    rows = rank_waits(analysis, step)
    if not rows:
        raise ValueError("no waits")
    rows = [rows[i] for i in shown_rows(analysis, [row.rank for row in rows])]
    colour = theme.group(palette.group_of("comm.all_to_all.transfer"))
    light = marker_of(True, colour)
    light["pattern"] = dict(light["pattern"], shape="\\", solidity=0.15)  # type: ignore[call-overload]
    series = (
        ("Removable wait", [r.removable_ns for r in rows], marker_of(True, colour)),
        ("Other arrival wait", [r.overlapped_ns for r in rows], light),
        ("Transfer", [r.transfer_ns for r in rows], marker_of(False, colour)),
    )
    figure = go.Figure()
    for name, values, marker in series:
        hover = [f"rank {r.rank}<br>{name}: {duration(v)}" for r, v in zip(rows, values, strict=True)]
        figure.add_bar(
            y=[f"rank {r.rank}" for r in rows], x=[v / 1e6 for v in values], orientation="h", name=name, text=hover,
            textposition="none", hovertemplate="%{text}<extra></extra>", marker=marker,
        )  # fmt: skip
    figure.update_layout(barmode="stack", bargap=0.2)
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    figure.update_xaxes(title_text="ms per step", rangemode="tozero")
    return styled(figure, theme, bar_height(len(rows)))
