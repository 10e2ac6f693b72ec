"""Plotly curves: memory, the steps of the run, transfers against size, clock brackets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from moescope.align.collectives import PART_OF_KIND
from moescope.views import palette
from moescope.views.figures import bar_height, plain, shown_rows, styled
from moescope.views.model import Analysis, RankMemory, TelemetryStep
from moescope.views.palette import THEMES, Theme
from moescope.views.panels import spread
from moescope.views.panels.run import phases_of
from moescope.views.text import count, duration, ratio, size

MOST_CURVES = 8
MOST_PHASES = 7
MOST_POINTS = 2000
SYMBOLS = ("circle", "diamond", "square", "cross", "triangle-up")
GIB = float(1 << 30)
MIB = float(1 << 20)


def _unit(top: float) -> tuple[float, str]:
    return (GIB, "GiB") if top >= GIB else (MIB, "MiB")


def memory_figure(analysis: Analysis, theme_name: str = "light", rank: int | None = None) -> go.Figure:
    """Allocated bytes over time, and dotted the reserved ones, of at most eight ranks.

    They are ``rank``, the extremes, those that findings name, and others.
    """
    theme = THEMES[theme_name]
    memories = [m for m in analysis.memory if m.series]
    if not memories:
        raise ValueError("no memory over time")
    order = sorted(range(len(memories)), key=lambda i: -memories[i].allocated_peak_bytes)
    asked = [i for i, m in enumerate(memories) if m.rank == rank]
    named = shown_rows(analysis, [m.rank for m in memories], MOST_CURVES)
    chosen = [memories[i] for i in spread(len(memories), [*asked, order[0], order[-1], *named], MOST_CURVES)]
    unit, name = _unit(max(m.allocated_peak_bytes for m in chosen))
    start = min(m.series[0][0] for m in chosen)
    figure = go.Figure()
    for m, colour in zip(chosen, theme.lines, strict=False):
        figure.add_scatter(
            x=[(t - start) / 1e6 for t, _ in m.series], y=[b / unit for _, b in m.series], mode="lines",
            name=f"rank {m.rank}", line={"color": colour, "width": 3 if m.rank == rank else 1.6},
            hovertemplate=f"rank {m.rank}: %{{y:.2f}} {name} at %{{x:.2f}} ms<extra></extra>",
        )  # fmt: skip
        figure.add_scatter(
            x=[(m.peak_at_ns - start) / 1e6], y=[m.allocated_peak_bytes / unit], mode="markers", showlegend=False,
            marker={"color": colour, "size": 7},
            text=[f"rank {m.rank}: peak {size(m.allocated_peak_bytes)} in {plain(m.peak_phase)}"],
            hovertemplate="%{text}<extra></extra>",
        )  # fmt: skip
        figure.add_scatter(
            x=[(t - start) / 1e6 for t, _ in m.reserved_series], y=[b / unit for _, b in m.reserved_series],
            mode="lines", showlegend=False, line={"color": colour, "width": 1, "dash": "dot"},
            hovertemplate=f"rank {m.rank}: %{{y:.2f}} {name} reserved at %{{x:.2f}} ms<extra></extra>",
        )  # fmt: skip
    _capacity(figure, chosen, theme, unit)
    figure.update_xaxes(title_text="ms")
    figure.update_yaxes(title_text=name, rangemode="tozero")
    return styled(figure, theme, 340)


def _capacity(figure: go.Figure, memories: Sequence[RankMemory], theme: Theme, unit: float) -> None:
    capacities = {m.capacity_bytes for m in memories}
    capacity = capacities.pop() if len(capacities) == 1 else None
    top = max(m.allocated_peak_bytes for m in memories)
    if capacity and capacity < 4 * top:
        label = {"text": f"capacity {size(capacity)}", "textposition": "end",
                 "font": {"color": theme.muted, "size": 11}}  # fmt: skip
        figure.update_yaxes(range=[0, capacity / unit * 1.1])
        figure.add_hline(y=capacity / unit, line={"color": theme.hot, "dash": "dash", "width": 1.2}, label=label)


def peaks_figure(analysis: Analysis, theme_name: str = "light") -> go.Figure:
    """What was live at each rank's peak, by the phase that allocated it."""
    theme = THEMES[theme_name]
    memories = [m for m in analysis.memory if m.live_by_phase_bytes]
    if not memories:
        raise ValueError("nothing known about the peaks")
    chosen = [memories[i] for i in shown_rows(analysis, [m.rank for m in memories])]
    unit, name = _unit(max(m.allocated_peak_bytes for m in chosen))
    phases = phases_of(analysis)
    named = phases[:MOST_PHASES]
    colours = {group.key: theme.group(group) for group in palette.GROUPS}
    series = {phase: (colours[key], [m.live_by_phase_bytes.get(phase, 0) for m in chosen])
              for phase, key in zip(named, palette.phase_groups(named), strict=True)}  # fmt: skip
    rest = [sum(b for p, b in m.live_by_phase_bytes.items() if p not in named) for m in chosen]
    if any(rest):
        series["other phases"] = (colours["idle-other"], rest)
    figure = go.Figure()
    for phase, (colour, values) in series.items():
        hover = [f"rank {m.rank}<br>{plain(phase)}: {size(v)}" for m, v in zip(chosen, values, strict=True)]
        figure.add_bar(
            y=[f"rank {m.rank}" for m in chosen], x=[v / unit for v in values], orientation="h", name=plain(phase),
            marker={"color": colour, "line": {"width": 0}},
            text=hover, textposition="none", hovertemplate="%{text}<extra></extra>",
        )  # fmt: skip
    figure.update_layout(barmode="stack", bargap=0.2)
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    figure.update_xaxes(title_text=f"{name} live at the peak")
    return styled(figure, theme, bar_height(len(chosen)))


_CURVES: tuple[tuple[str, Callable[[TelemetryStep], float | None], Callable[[float | None], str], int], ...] = (
    ("Step time, ms", lambda s: s.duration_ns / 1e6, lambda v: duration(None if v is None else v * 1e6), 0),
    ("Tokens per second", lambda s: s.tokens / s.duration_ns * 1e9 if s.duration_ns else None, count, 2),
    ("Loss", lambda s: s.loss, ratio, 1),
    ("Gradient norm", lambda s: s.gradient_norm, ratio, 3),
    ("MaxVio of ranks", lambda s: s.maxvio_rank, ratio, 4),
)


def steps_figure(analysis: Analysis, theme_name: str = "light") -> go.Figure:
    """Step time, throughput, loss, gradient norm and MaxVio over the run on one step axis; profiled steps shaded."""
    theme = THEMES[theme_name]
    steps = analysis.telemetry
    if not steps:
        raise ValueError("no telemetry of steps")
    shown = [curve for curve in _CURVES if any(curve[1](s) is not None for s in steps)]
    titles = [title for title, *_ in shown]
    figure = make_subplots(rows=len(shown), cols=1, shared_xaxes=True, vertical_spacing=0.06, subplot_titles=titles)
    for row, (title, value, show, colour) in enumerate(shown, start=1):
        values = [value(s) for s in steps]
        figure.add_scatter(
            x=[s.step for s in steps], y=values, mode="lines", line={"color": theme.lines[colour], "width": 1.6},
            text=[f"step {s.step}: {show(v)}" for s, v in zip(steps, values, strict=True)], name=title,
            hovertemplate="%{text}<extra></extra>", row=row, col=1,
        )  # fmt: skip
    for first, last in profiled_spans(steps) if not all(s.profiled for s in steps) else ():
        band = {"fillcolor": theme.lines[5], "opacity": 0.3, "line_width": 0, "layer": "below"}
        figure.add_vrect(x0=first - 0.5, x1=last + 0.5, **band)
    styled(figure, theme, 90 + 150 * len(shown), legend=False)
    figure.update_layout(margin_t=34)
    figure.update_annotations(font={"size": 12, "color": theme.muted}, x=0, xanchor="left")
    few = {"dtick": 1} if len(steps) <= 12 else {}
    title = "step · all profiled" if all(s.profiled for s in steps) else "step · shaded: profiled"
    figure.update_xaxes(title_text=title, row=len(shown), col=1)
    figure.update_xaxes(tickformat="d", **few)
    figure.update_yaxes(rangemode="tozero")
    return figure


def profiled_spans(steps: Sequence[TelemetryStep]) -> list[tuple[int, int]]:
    """Runs of neighbouring profiled steps as (first, last)."""
    spans: list[tuple[int, int]] = []
    for step in steps:
        if not step.profiled:
            continue
        if spans and step.step == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], step.step)
        else:
            spans.append((step.step, step.step))
    return spans


def clock_figure(analysis: Analysis, theme_name: str = "light") -> go.Figure:
    """Each host's bracket around its estimate."""
    theme = THEMES[theme_name]
    if not analysis.clock:
        raise ValueError("no clocks")
    hosts = [plain(c.host) for c in analysis.clock]
    text = [
        f"{plain(c.host)}: offset {duration(c.offset_ns)}, between {duration(c.low_ns)} and {duration(c.high_ns)}, "
        f"{plain(c.method)}"
        for c in analysis.clock
    ]
    figure = go.Figure(
        go.Scatter(
            x=[0.0] * len(hosts), y=hosts, mode="markers", marker={"color": theme.lines[0], "size": 9}, text=text,
            hovertemplate="%{text}<extra></extra>",
            error_x={"type": "data", "symmetric": False, "color": theme.lines[5], "thickness": 8, "width": 0,
                     "array": [(c.high_ns - c.offset_ns) / 1e3 for c in analysis.clock],
                     "arrayminus": [(c.offset_ns - c.low_ns) / 1e3 for c in analysis.clock]},
        )
    )  # fmt: skip
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    figure.update_xaxes(title_text="µs around the estimate; the bar is the bracket that contains the offset")
    return styled(figure, theme, bar_height(len(hosts)), legend=False)


def transfers_figure(analysis: Analysis, theme_name: str = "light") -> go.Figure:
    """Bandwidth of every collective against its busiest member's bytes, both axes logarithmic."""
    theme = THEMES[theme_name]
    points: dict[str, list[tuple[float, float, str]]] = {}
    for c in analysis.collectives:
        for m in c.by_rank:
            volume = max(m.send_bytes or 0, m.recv_bytes or 0)
            if volume > 0 and m.transfer_ns > 0:
                rate = volume / m.transfer_ns * 1e9
                name = f"{c.kind.replace('_', ' ')} {c.sequence}, rank {m.rank}"
                text = plain(f"{name}: {size(volume)} in {duration(m.transfer_ns)}")
                points.setdefault(c.kind, []).append((float(volume), rate / 1e9, text))
    if not points:
        raise ValueError("no collective with known bytes")
    figure = go.Figure()
    seen: list[str] = []
    for kind in sorted(points):
        group = palette.group_of(f"comm.{PART_OF_KIND.get(kind, 'other')}.transfer")
        symbol = SYMBOLS[seen.count(group.key) % len(SYMBOLS)]
        seen.append(group.key)
        kept = points[kind][:: -(-len(points[kind]) // MOST_POINTS)]
        figure.add_scatter(
            x=[v[0] for v in kept], y=[v[1] for v in kept], text=[v[2] for v in kept], mode="markers",
            name=plain(kind.replace("_", " ")),
            marker={"color": theme.group(group), "symbol": symbol, "size": 7, "opacity": 0.7},
            hovertemplate="%{text}, %{y:.3g} GB/s<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(
        type="log", dtick=1, exponentformat="power", title_text="bytes of one rank, the larger of sent and received"
    )
    figure.update_yaxes(type="log", dtick=1, exponentformat="power", title_text="GB/s while transferring")
    return styled(figure, theme, 360)
