"""The report's charts of matrix products and idle time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from markupsafe import Markup

from moescope.report.charts import Bar, Segment, stacked_bars
from moescope.report.svg import WIDTH, bare_zeros, chart, line, num, tag, text, ticks
from moescope.views.model.gemm import Gemm
from moescope.views.palette import group_of
from moescope.views.panels.gemm import LOSSES, LossRow, drawn_references, rate_curves, reference_label
from moescope.views.panels.host import HOST_PARTS, host_ns, used_host_parts
from moescope.views.panels.step import RankParts
from moescope.views.text import count, duration, percent, significant

Legend = tuple[tuple[str, str], ...]
Place = Callable[[float, float], tuple[float, float]]
"""(rows, TFLOP/s) -> coordinates."""
LEFT, RIGHT, TOP, BOTTOM = 78, 14, 20, 238
LOSS_CLASSES = dict(zip(LOSSES, ("k3", "k4", "k0", "k1", "k7"), strict=True))
_HOST_CLASSES = {"idle.dependency": "k2", "idle.outside": "k4"}


def rates_chart(gemm: Gemm) -> tuple[Markup, Legend]:
    """TFLOP/s over rows per expert (logarithmic): medians as points, fitted lines, references dashed and named."""
    shown = [curve for curve in rate_curves(gemm) if curve.points]
    references = drawn_references(gemm, shown)
    rows = [point[0] for curve in shown for point in curve.points]
    low, high = math.log10(min(rows)), math.log10(max(rows))
    low, high = (low, high) if high - low > 0.1 else (low - 0.5, high + 0.5)
    rates = [rate for curve in shown for _, rate, _ in curve.points]
    top = max(rates + [reference.rate_tflops for reference in references]) * 1.04

    def at(x: float, y: float) -> tuple[float, float]:
        across = LEFT + 8 + (math.log10(x) - low) / (high - low) * (WIDTH - LEFT - RIGHT - 16)
        return across, BOTTOM - y / top * (BOTTOM - TOP)

    parts = _axes(low, high, top, at)
    for index, curve in enumerate(shown):
        if curve.fit:
            path = "M" + "L".join(f"{num(x)} {num(y)}" for x, y in (at(*point) for point in curve.fit))
            parts.append(tag("path", d=path, class_=f"line l{index}"))
        for number, rate, calls in curve.points:
            x, y = at(number, rate)
            title = f"{curve.label} · {count(number)} rows: {significant(rate)} TFLOP/s, {count(calls)} calls"
            parts.append(tag("circle", tag("title", title), cx=x, cy=y, r=3.5, class_=f"dot l{index}"))
    for reference in references:
        y = at(min(rows), reference.rate_tflops)[1]
        parts.append(line(LEFT, y, WIDTH - RIGHT, y, "limit"))
        parts.append(text(LEFT + 6, y - 5, f"reference {reference_label(reference)}", class_="t num"))
    legend = tuple((f"k{index}", curve.label) for index, curve in enumerate(shown))
    return chart(BOTTOM + 38, "Rate of matrix products over rows per expert", parts), legend


def _axes(low: float, high: float, top: float, at: Place) -> list[Markup]:
    parts = []
    for value in ticks(top, 5):
        y = at(10**low, value)[1]
        parts.append(line(LEFT, y, WIDTH - RIGHT, y, "grid"))
        parts.append(text(LEFT - 8, y + 4, bare_zeros(significant(value)), anchor="end", class_="t dim"))
    marks = [step * 10**power for power in range(math.floor(low), math.ceil(high) + 1) for step in (1, 2, 5)]
    for mark in marks if high - low < 2.5 else marks[::3]:
        if low <= math.log10(mark) <= high:
            parts.append(text(at(mark, 0)[0], BOTTOM + 16, count(mark), anchor="middle", class_="t dim"))
    parts.append(text(WIDTH - RIGHT, BOTTOM + 33, "rows per expert", anchor="end", class_="t dim"))
    parts.append(text(LEFT - 8, TOP - 8, "TFLOP/s", anchor="end", class_="t dim"))
    return parts


def losses_chart(rows: Sequence[LossRow], label: str) -> tuple[Markup, Legend]:
    """What products lose by kind, a bar per row; the whole loss at its end, to which a negative residual counts."""
    bars = []
    for row in rows:
        segments = tuple(
            Segment(value, LOSS_CLASSES[kind], f"{row.label} · {name}: {duration(value)}")
            for kind, name in LOSSES.items()
            if (value := row.cost.parts_ns_per_step.get(kind, 0)) > 0
        )
        bars.append(Bar(row.label, segments, duration(row.cost.loss_ns_per_step)))
    used = [kind for kind in LOSSES if any(row.cost.parts_ns_per_step.get(kind, 0) > 0 for row in rows)]
    return stacked_bars(bars, label, duration), tuple((LOSS_CLASSES[kind], LOSSES[kind].capitalize()) for kind in used)


def host_chart(rows: Sequence[RankParts]) -> tuple[Markup, Legend]:
    """Idle time by kind, one bar per rank."""
    used = used_host_parts(rows)
    classes = {part: _HOST_CLASSES.get(part, f"p-{group_of(part).key}") for part in used}
    bars = []
    for row in rows:
        segments = []
        for part in used:
            value = row.parts_ns.get(part, 0.0)
            share = percent(value / row.window_ns if row.window_ns else 0.0)
            title = f"rank {row.rank} · {HOST_PARTS[part][0]}: {duration(value)}, {share}"
            segments.append(Segment(value, classes[part], title))
        bars.append(Bar(f"rank {row.rank}", tuple(segments), duration(host_ns(row))))
    legend = tuple((classes[part], HOST_PARTS[part][0]) for part in used)
    return stacked_bars(bars, "Idle time per rank by kind", duration), legend
