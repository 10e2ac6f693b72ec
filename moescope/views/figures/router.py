"""Plotly figures of the routers: margin, flips and drops by layer, a layer's history, traffic between hosts."""

from __future__ import annotations

from collections.abc import Callable

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from moescope.views.figures import styled
from moescope.views.figures.heat import amounts_figure
from moescope.views.model import Analysis
from moescope.views.model.router import RouterLayer
from moescope.views.palette import THEMES
from moescope.views.panels.router import chosen_layer, histories, traffic_matrix
from moescope.views.text import factor, percent, ratio

MIB = float(1 << 20)
_BARS: tuple[tuple[str, Callable[[RouterLayer], float | None], Callable[[float | None], str], int], ...] = (
    ("Margin", lambda one: one.margin, ratio, 0),
    ("Flips in bfloat16", lambda one: one.flipped_share, percent, 4),
    ("Entropy", lambda one: one.entropy, ratio, 5),
    ("Dropped", lambda one: one.dropped_share, percent, 1),
)


def routers_figure(analysis: Analysis, theme_name: str = "light") -> go.Figure:
    """One small bar chart per quantity over the layers; quantities that were not recorded are left out."""
    theme = THEMES[theme_name]
    shown = [bar for bar in _BARS if any(bar[1](one) is not None for one in analysis.routers)]
    if not shown:
        raise ValueError("no telemetry of the routers")
    figure = make_subplots(rows=1, cols=len(shown), subplot_titles=[title for title, *_ in shown])
    layers = [str(one.layer) for one in analysis.routers]
    for column, (title, value, show, colour) in enumerate(shown, start=1):
        values = [value(one) for one in analysis.routers]
        figure.add_bar(
            x=layers, y=values, marker={"color": theme.lines[colour]}, name=title, row=1, col=column,
            text=[f"layer {layer}: {title.lower()} {show(v)}" for layer, v in zip(layers, values, strict=True)],
            textposition="none", hovertemplate="%{text}<extra></extra>",
        )  # fmt: skip
        if show is percent:
            figure.update_yaxes(tickformat=".2~%", row=1, col=column)
    styled(figure, theme, 250, legend=False)
    figure.update_layout(margin_t=34)
    figure.update_annotations(font={"size": 12, "color": theme.muted})
    figure.update_xaxes(type="category", title_text="layer")
    figure.update_yaxes(rangemode="tozero")
    return figure


def history_figure(analysis: Analysis, theme_name: str = "light", layer: int | None = None) -> go.Figure:
    """MaxVio of ranks over the steps: the chosen layer among the others, with its worst microbatch and random floor."""
    load = analysis.load
    if load is None or not load.intervals:
        raise ValueError("no intervals")
    theme, chosen = THEMES[theme_name], chosen_layer(load, layer)
    figure = go.Figure()
    made = sorted(histories(load), key=lambda one: one.layer == chosen)
    for one in made:
        is_mine = one.layer == chosen
        figure.add_scatter(
            x=one.steps, y=one.maxvio_rank, mode="lines+markers", name=f"layer {one.layer}", showlegend=is_mine,
            line={"color": theme.lines[1] if is_mine else theme.muted, "width": 2.4 if is_mine else 0.9},
            marker={"size": 7 if is_mine else 3}, opacity=1 if is_mine else 0.55,
            hovertemplate="%{text}<extra></extra>",
            text=[f"layer {one.layer}, step {step}: {factor(1 + v)} the mean"
                  for step, v in zip(one.steps, one.maxvio_rank, strict=True)],
        )  # fmt: skip
    mine = made[-1]
    figure.add_scatter(
        x=mine.steps, y=mine.worst_rank, mode="markers", name="its worst microbatch", hoverinfo="skip",
        marker={"symbol": "triangle-up-open", "size": 9, "color": theme.lines[1]},
    )  # fmt: skip
    figure.add_scatter(
        x=mine.steps, y=[mine.floor] * len(mine.steps), mode="lines+markers" if len(mine.steps) == 1 else "lines",
        name="random floor", hoverinfo="skip", line={"color": theme.text, "dash": "dash", "width": 1.4},
    )  # fmt: skip
    styled(figure, theme, 320)
    few = {"dtick": 1} if len(mine.steps) <= 12 else {}
    figure.update_xaxes(title_text="step", tickformat="d", **few)
    figure.update_yaxes(title_text="MaxVio of ranks", rangemode="tozero")
    return figure


def traffic_figure(analysis: Analysis, theme_name: str = "light") -> go.Figure:
    """Bytes per step from host (rows) to host (columns)."""
    if not analysis.traffic:
        raise ValueError("no sizes of exchanges")
    return amounts_figure(traffic_matrix(analysis), THEMES[theme_name], MIB, "MiB per step")
