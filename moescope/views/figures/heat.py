"""Plotly heat maps: load of experts and ranks with the random floor beside, microbatches, who waits for whom."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from moescope.views import palette
from moescope.views.figures import plain, styled
from moescope.views.model import Analysis
from moescope.views.palette import THEMES, Theme
from moescope.views.panels import Matrix
from moescope.views.panels.comm import wait_matrix
from moescope.views.panels.groups import straggler_matrix
from moescope.views.panels.load import POWERS, balance_limit, expert_matrix, interval_matrix, rank_matrix
from moescope.views.text import FORMATS, ratio

MOST_WRITTEN_COLUMNS, MOST_WRITTEN_ROWS = 16, 24
"""Up to this many cells carry their number."""
Observed = Sequence[tuple[float | None, float | None]]


def _names(items: Sequence[int | str]) -> list[str]:
    return [plain(item) for item in items]


def _hover(matrix: Matrix) -> list[list[str]]:
    show = FORMATS[matrix.kind]
    rows = zip(matrix.rows, matrix.values, strict=True)
    columns = [f"{matrix.column_name} {plain(c)}" for c in matrix.columns]
    return [
        [f"{matrix.row_name} {plain(r)}, {c}: {show(v)}" for c, v in zip(columns, row, strict=True)] for r, row in rows
    ]


def _height(num_rows: int) -> int:
    return 130 + max(60, min(520, 26 * num_rows))


def _heat(matrix: Matrix, z: list[list[float | None]], most_written: int, **options: object) -> go.Heatmap:
    gap = 1 if len(matrix.rows) * len(matrix.columns) < 4000 else 0
    show = FORMATS[matrix.kind]
    if len(matrix.columns) <= most_written and len(matrix.rows) <= MOST_WRITTEN_ROWS:
        options["text"] = [[show(v) if v is not None else "" for v in row] for row in matrix.values]
        options["texttemplate"] = "%{text}"
    return go.Heatmap(
        z=z, x=_names(matrix.columns), y=_names(matrix.rows),
        hovertext=_hover(matrix), hovertemplate="%{hovertext}<extra></extra>",
        xgap=gap, ygap=gap, hoverongaps=False, **options,
    )  # fmt: skip


def _bar(theme: Theme, **options: object) -> dict[str, object]:
    return {"thickness": 10, "outlinewidth": 0, "tickfont": {"color": theme.muted, "size": 11}, "len": 1.0, **options}


def _balance(matrix: Matrix, beside: Observed, theme: Theme, layer: int | None) -> go.Figure:
    limit = balance_limit(matrix)
    z = [[None if v is None else math.log2(v) if v > 0 else -limit for v in row] for row in matrix.values]
    figure = make_subplots(rows=1, cols=2, shared_yaxes=True, column_widths=[0.8, 0.2], horizontal_spacing=0.03)
    powers = list(range(-limit, limit + 1))
    bar = _bar(theme, x=1.01, tickvals=powers, ticktext=[POWERS[p] for p in powers])
    scale = [list(stop) for stop in palette.diverging(theme)]
    figure.add_trace(
        _heat(matrix, z, MOST_WRITTEN_COLUMNS, colorscale=scale, zmin=-limit, zmax=limit, colorbar=bar), row=1, col=1
    )
    rows = _names(matrix.rows)
    seen = [pair[0] for pair in beside]
    figure.add_bar(
        y=rows, x=seen, orientation="h", marker={"color": theme.lines[1]}, name="MaxVio", row=1, col=2,
        text=[f"layer {r}: MaxVio {ratio(s)}, random floor {ratio(f)}" for r, (s, f) in zip(rows, beside, strict=True)],
        textposition="none", hovertemplate="%{text}<extra></extra>",
    )  # fmt: skip
    figure.add_scatter(
        y=rows, x=[pair[1] for pair in beside], mode="markers", name="random floor", hoverinfo="skip", row=1, col=2,
        marker={"symbol": "line-ns-open", "size": 14, "color": theme.text, "line": {"width": 2.5, "color": theme.text}},
    )  # fmt: skip
    styled(figure, theme, _height(len(rows)), legend=False, left=60)
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    figure.update_yaxes(title_text="layer", row=1, col=1)
    figure.update_xaxes(type="category", showgrid=False, title_text=matrix.column_name, row=1, col=1)
    figure.update_xaxes(rangemode="tozero", title_text="MaxVio · tick: random floor", row=1, col=2)
    if layer in matrix.rows:
        row = matrix.rows.index(layer)
        figure.add_shape(
            type="rect", x0=-0.5, x1=len(matrix.columns) - 0.5, y0=row - 0.5, y1=row + 0.5,
            line={"color": theme.text, "width": 2}, row=1, col=1,
        )  # fmt: skip
    return figure


def experts_figure(analysis: Analysis, theme_name: str = "light", layer: int | None = None) -> go.Figure:
    """Load of experts by layer as multiples of the mean; MaxVio and its random floor beside; ``layer`` is framed."""
    load = analysis.load
    matrix = expert_matrix(load) if load else None
    if load is None or matrix is None:
        raise ValueError("no counts per expert")
    beside = [(x.maxvio_expert, x.maxvio_expert_floor) for x in load.layers if x.expert_tokens]
    return _balance(matrix, beside, THEMES[theme_name], layer)


def ranks_figure(analysis: Analysis, theme_name: str = "light", layer: int | None = None) -> go.Figure:
    """Load of ranks by layer as multiples of the mean; MaxVio and its random floor beside; ``layer`` is framed."""
    load = analysis.load
    if load is None or not load.layers:
        raise ValueError("no counts")
    beside = [(x.maxvio_rank, x.maxvio_rank_floor) for x in load.layers]
    return _balance(rank_matrix(load), beside, THEMES[theme_name], layer)


def amounts_figure(
    matrix: Matrix, theme: Theme, unit: float, title: str, most_written: int = MOST_WRITTEN_COLUMNS
) -> go.Figure:
    """A matrix of amounts from nothing to most, in ``unit``; numbers in at most ``most_written`` columns."""
    z: list[list[float | None]] = [[None if v is None else v / unit for v in row] for row in matrix.values]
    scale = [list(stop) for stop in palette.sequential(theme)]
    top = max((v for row in z for v in row if v is not None), default=0.0) or 1.0
    bar = _bar(theme, title={"text": title, "font": {"color": theme.muted, "size": 11}, "side": "right"})
    figure = go.Figure(_heat(matrix, z, most_written, colorscale=scale, zmin=0, zmax=top, colorbar=bar))
    styled(figure, theme, _height(len(matrix.rows)), legend=False, left=60)
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False, title_text=matrix.row_name)
    figure.update_xaxes(type="category", showgrid=False, title_text=matrix.column_name)
    return figure


def intervals_figure(analysis: Analysis, theme_name: str = "light") -> go.Figure:
    """MaxVio of ranks in every layer and microbatch."""
    matrix = interval_matrix(analysis.load) if analysis.load else None
    if matrix is None:
        raise ValueError("no intervals")
    return amounts_figure(matrix, THEMES[theme_name], 1.0, "MaxVio")


def edges_figure(
    analysis: Analysis, theme_name: str = "light", *, most_written: int = MOST_WRITTEN_COLUMNS
) -> go.Figure:
    """How long each rank (rows) waited for each other (columns), per step; numbers in at most ``most_written``."""
    if not analysis.wait_edges:
        raise ValueError("no rank waited")
    return amounts_figure(wait_matrix(analysis), THEMES[theme_name], 1e6, "ms per step", most_written)


def stragglers_figure(analysis: Analysis, theme_name: str = "light") -> go.Figure:
    """How long the others waited for each rank (rows) over the profiled time (columns)."""
    matrix = straggler_matrix(analysis)
    if not matrix.rows:
        raise ValueError("no collectives")
    figure = amounts_figure(matrix, THEMES[theme_name], 1e6, "ms waited", 0)
    figure.update_xaxes(title_text="ms since the first collective", nticks=12)
    return figure
