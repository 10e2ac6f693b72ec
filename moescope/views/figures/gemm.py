"""Plotly figures of matrix products and of idle time."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from moescope.views.figures import bar_height, plain, shown_rows, styled
from moescope.views.model import Analysis
from moescope.views.palette import THEMES, Theme, group_of
from moescope.views.panels.gemm import (
    LOSSES,
    LossRow,
    bucket_rows,
    drawn_references,
    layer_rows,
    rate_curves,
    reference_label,
)
from moescope.views.panels.host import HOST_PARTS, used_host_parts
from moescope.views.panels.step import rank_parts
from moescope.views.text import count, duration, percent, significant

LOSS_COLOURS = dict(zip(LOSSES, (3, 4, 0, 1, 7), strict=True))
"""Kind of loss -> its place in ``Theme.lines``."""
MORE_HOST_COLOURS = {"idle.dependency": 2, "idle.outside": 4}
"""Kinds of idle time that the parts of the step draw as one with others -> their place in ``Theme.lines``."""


def rates_figure(analysis: Analysis, theme_name: str = "light") -> go.Figure:
    """TFLOP/s over rows per expert: medians as points, the fitted line, the reference dashed and named."""
    theme = THEMES[theme_name]
    curves = [curve for curve in rate_curves(analysis.gemm) if curve.points] if analysis.gemm else []
    if analysis.gemm is None or not curves:
        raise ValueError("no rates of matrix products")
    figure = go.Figure()
    for curve, colour in zip(curves, theme.lines, strict=False):
        label = plain(curve.label)
        figure.add_scatter(
            x=[rows for rows, _, _ in curve.points], y=[rate for _, rate, _ in curve.points], mode="markers",
            name=label, legendgroup=label, marker={"color": colour, "size": 7, "opacity": 0.75},
            text=[f"{label}<br>{count(r)} rows: {significant(v)} TFLOP/s, {count(n)} calls"
                  for r, v, n in curve.points],
            hovertemplate="%{text}<extra></extra>",
        )  # fmt: skip
        figure.add_scatter(
            x=[rows for rows, _ in curve.fit], y=[rate for _, rate in curve.fit], mode="lines", legendgroup=label,
            showlegend=False, line={"color": colour, "width": 1.8}, hoverinfo="skip",
        )  # fmt: skip
    references = drawn_references(analysis.gemm, curves)
    for reference in references:
        text = {"text": f"reference {plain(reference_label(reference))}", "textposition": "start",
                "font": {"color": theme.muted, "size": 11}}  # fmt: skip
        figure.add_hline(y=reference.rate_tflops, line={"color": theme.hot, "dash": "dash", "width": 1.2}, label=text)
    highest = max([rate for curve in curves for _, rate, _ in curve.points] + [r.rate_tflops for r in references])
    figure.update_xaxes(
        type="log",
        dtick="D2" if _is_narrow([curve.points for curve in curves]) else 1,
        exponentformat="none",
        separatethousands=True,
        title_text="rows per expert, logarithmic",
    )
    figure.update_yaxes(title_text="TFLOP/s", range=[0, highest * 1.12])
    return styled(figure, theme, 400)


def _is_narrow(points: Sequence[Sequence[tuple[float, float, int]]]) -> bool:
    rows = [point[0] for one in points for point in one]
    return max(rows) < 100 * max(min(rows), 1e-9)


def losses_figure(analysis: Analysis, theme_name: str = "light") -> go.Figure:
    """What the experts' products lose, by rows per expert and kind."""
    if analysis.gemm is None or not analysis.gemm.buckets:
        raise ValueError("no expert products")
    return _losses(bucket_rows(analysis.gemm), THEMES[theme_name])


def layer_losses_figure(analysis: Analysis, theme_name: str = "light") -> go.Figure:
    """What the experts' products lose, by layer and kind."""
    if analysis.gemm is None or not analysis.gemm.layers:
        raise ValueError("no layers")
    return _losses(layer_rows(analysis.gemm), THEMES[theme_name])


def _losses(rows: Sequence[LossRow], theme: Theme) -> go.Figure:
    figure = go.Figure()
    for kind, name in LOSSES.items():
        values = [row.cost.parts_ns_per_step.get(kind, 0) for row in rows]
        if not any(values):
            continue
        texts = [
            f"{row.label}<br>{name}: {duration(v)}, {percent(v / (row.cost.time_ns_per_step or 1))} of their time"
            for row, v in zip(rows, values, strict=True)
        ]
        figure.add_bar(
            y=[row.label for row in rows], x=[v / 1e6 for v in values], orientation="h", name=name.capitalize(),
            text=texts, textposition="none", hovertemplate="%{text}<extra></extra>",
            marker={"color": theme.lines[LOSS_COLOURS[kind]], "line": {"width": 0}},
        )  # fmt: skip
    figure.update_layout(barmode="relative", bargap=0.2)
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    figure.update_xaxes(title_text="ms lost per rank and step; left of zero: faster than the limits")
    return styled(figure, theme, bar_height(len(rows)), left=110)


def host_colour(part: str, theme: Theme) -> str:
    """The colour of one kind of idle time."""
    place = MORE_HOST_COLOURS.get(part)
    return theme.group(group_of(part)) if place is None else theme.lines[place]


def host_figure(analysis: Analysis, theme_name: str = "light") -> go.Figure:
    """Idle time of each rank by kind, one stacked bar per rank."""
    theme = THEMES[theme_name]
    rows = rank_parts(analysis)
    parts = used_host_parts(rows)
    if not parts:
        raise ValueError("nothing idle")
    rows = [rows[i] for i in shown_rows(analysis, [row.rank for row in rows])]
    figure = go.Figure()
    for part in parts:
        values = [row.parts_ns.get(part, 0.0) for row in rows]
        name = HOST_PARTS[part][0]
        texts = [f"rank {row.rank}, {plain(row.host)}<br>{name}: {duration(v)}"
                 for row, v in zip(rows, values, strict=True)]  # fmt: skip
        figure.add_bar(
            y=[f"rank {row.rank}" for row in rows], x=[v / 1e6 for v in values], orientation="h", name=name,
            text=texts, textposition="none", hovertemplate="%{text}<extra></extra>",
            marker={"color": host_colour(part, theme), "line": {"width": 0}},
        )  # fmt: skip
    figure.update_layout(barmode="stack", bargap=0.2)
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    figure.update_xaxes(title_text="ms per step", rangemode="tozero")
    return styled(figure, theme, bar_height(len(rows)))
