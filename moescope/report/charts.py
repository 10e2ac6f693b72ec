"""The report's charts: panels' values as SVG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from moescope.report.svg import WIDTH, bare_zeros, chart, line, num, rect, shorten, tag, text, ticks
from moescope.views.palette import PartGroup
from moescope.views.panels.comm import RankWaits
from moescope.views.panels.step import RankParts
from moescope.views.text import duration, percent

LEFT = 86
RIGHT = 84


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a stacked bar."""

    value: float
    class_: str
    title: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of a stacked bar chart; ``total`` is written at its end."""

    label: str
    segments: tuple[Segment, ...]
    total: str


def stacked_bars(bars: Sequence[Bar], label: str, show: Callable[[float], str], unit: float = 1.0) -> Markup:
    """Horizontal stacked bars on a common axis from zero with ticks at round multiples of ``unit``."""
    height = 24 if len(bars) <= 16 else 17
    top = max((sum(s.value for s in bar.segments) for bar in bars), default=0) or 1
    scale = (WIDTH - LEFT - RIGHT) / top
    bottom = height * len(bars) + 6
    marks = [tick * unit for tick in ticks(top / unit)]
    parts = [line(LEFT + v * scale, 0, LEFT + v * scale, bottom, "grid") for v in marks]
    for index, bar in enumerate(bars):
        y = index * height + 4
        parts.append(text(LEFT - 8, y + height / 2 + 2, shorten(bar.label, 13), anchor="end"))
        x = float(LEFT)
        for segment in bar.segments:
            if segment.value > 0:
                parts.append(rect(x, y, segment.value * scale, height - 5, class_=segment.class_, title=segment.title))
                x += segment.value * scale
        parts.append(text(x + 6, y + height / 2 + 2, bar.total, class_="t num"))
    parts += [text(LEFT + v * scale, bottom + 14, bare_zeros(show(v)), anchor="middle", class_="t dim") for v in marks]
    return chart(bottom + 20, label, parts)


def parts_chart(rows: Sequence[RankParts], groups: Sequence[PartGroup]) -> Markup:
    """The parts of the step, one bar per rank."""
    bars = []
    for row in rows:
        segments = tuple(
            Segment(
                row.groups_ns[group.key],
                f"p-{group.key}",
                f"rank {row.rank} · {group.label}: {duration(row.groups_ns[group.key])}, "
                f"{percent(row.groups_ns[group.key] / row.window_ns if row.window_ns else 0.0)}",
            )
            for group in groups
        )
        bars.append(Bar(f"rank {row.rank}", segments, duration(row.window_ns)))
    return stacked_bars(bars, "Parts of the step per rank", duration)


def waits_chart(rows: Sequence[RankWaits]) -> Markup:
    """Removable wait, other wait and transfer, one bar per rank."""
    bars = []
    for row in rows:
        name = f"rank {row.rank} · "
        segments = (
            Segment(row.removable_ns, "w-removable", f"{name}removable wait: {duration(row.removable_ns)}"),
            Segment(row.overlapped_ns, "w-overlapped", f"{name}other arrival wait: {duration(row.overlapped_ns)}"),
            Segment(row.transfer_ns, "w-transfer", f"{name}transfer: {duration(row.transfer_ns)}"),
        )
        bars.append(Bar(f"rank {row.rank}", segments, duration(row.removable_ns + row.overlapped_ns)))
    return stacked_bars(bars, "Arrival wait and transfer per rank", duration)


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of (x, y) points."""

    label: str
    points: tuple[tuple[float, float], ...]
    class_: str


def curves(
    lines: Sequence[Curve],
    label: str,
    show_x: Callable[[float], str],
    show_y: Callable[[float], str],
    *,
    height: int = 240,
    width: int = WIDTH,
    bands: Sequence[tuple[float, float]] = (),
    limit: tuple[float, str] | None = None,
    unit: float = 1.0,
) -> Markup:
    """Lines from y = 0, ticks at round multiples of ``unit``, shaded ``bands`` on x and a dashed, named ``limit``."""
    left, right, bottom = 78, 14, height - 22
    xs = [x for curve in lines for x, _ in curve.points]
    low, high = min(xs), max(xs)
    span = (high - low) or 1.0
    top = max([y for curve in lines for _, y in curve.points] + ([limit[0]] if limit else [])) * 1.06 or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        return left + (x - low) / span * (width - left - right), bottom - y / top * (bottom - 8)

    parts = []
    for start, end in bands:
        x0, x1 = at(start, 0)[0], at(end, 0)[0]
        parts.append(rect(x0 - 2, 8, max(x1 - x0, 0) + 4, bottom - 8, class_="band"))
    for value in (t * unit for t in ticks(top / unit, 5)):
        y = at(low, value)[1]
        parts.append(line(left, y, width - right, y, "grid"))
        parts.append(text(left - 8, y + 4, bare_zeros(show_y(value)), anchor="end", class_="t dim"))
    for value in ticks(span, 6 if width > 600 else 4):
        x = at(low + value, 0)[0]
        parts.append(text(x, bottom + 16, bare_zeros(show_x(value + low)), anchor="middle", class_="t dim"))
    if limit:
        y = at(low, limit[0])[1]
        parts.append(line(left, y, width - right, y, "limit"))
        parts.append(text(width - right, y - 5, limit[1], anchor="end", class_="t dim"))
    for curve in lines:
        path = "M" + "L".join(f"{num(x)} {num(y)}" for x, y in (at(*p) for p in curve.points))
        parts.append(tag("path", tag("title", curve.label), d=path, class_=f"line {curve.class_}"))
    return chart(height, label, parts, width)
