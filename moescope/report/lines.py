"""The report's curves: memory, the steps of the run, and the brackets of the clocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from markupsafe import Markup

from moescope.report.charts import Bar, Curve, Segment, curves, stacked_bars
from moescope.report.svg import WIDTH, chart, line, rect, shorten, tag, text
from moescope.views.model import Analysis, RankMemory, TelemetryStep
from moescope.views.palette import phase_groups
from moescope.views.panels.run import phases_of
from moescope.views.text import count, duration, ratio, size

Legend = tuple[tuple[str, str], ...]
MOST_PHASES = 7
NUM_COLOURS = 8


def _unit(top: float) -> float:
    """The binary unit whose round multiples suit an axis to ``top`` bytes."""
    power = max(0, (int(top).bit_length() - 2) // 10)
    return float(1 << (10 * power))


def memory_curves(analysis: Analysis, shown: Sequence[int]) -> tuple[Markup, Legend]:
    """Allocated bytes over time of the ranks at the places ``shown``; capacity as a limit where it is near."""
    memories = [analysis.memory[i] for i in shown if analysis.memory[i].series]
    start = min(m.series[0][0] for m in memories)
    top = max(m.allocated_peak_bytes for m in memories)
    capacities = {m.capacity_bytes for m in memories}
    capacity = capacities.pop() if len(capacities) == 1 else None
    limit = (float(capacity), f"capacity {size(capacity)}") if capacity and capacity < 4 * top else None
    drawn = [
        Curve(
            f"rank {m.rank}: peak {size(m.allocated_peak_bytes)} in {m.peak_phase}",
            tuple((float(t - start), float(b)) for t, b in m.series),
            f"l{i}",
        )
        for i, m in enumerate(memories)
    ]
    legend = tuple((f"k{i}", f"rank {m.rank}")
                   for i, m in enumerate(memories))  # fmt: skip
    svg = curves(
        drawn, "Allocated memory over time", duration, size, limit=limit, unit=_unit(limit[0] if limit else top)
    )
    return svg, legend


def memory_peaks(analysis: Analysis, shown: Sequence[int]) -> tuple[Markup, Legend]:
    """What was live at each rank's peak; phases beyond the seventh are summed."""
    phases = phases_of(analysis)
    colours = dict(zip(phases[:MOST_PHASES], phase_groups(phases[:MOST_PHASES]), strict=True))
    bars = [_peak_bar(analysis.memory[i], colours) for i in shown]
    legend = [(f"p-{colours[phase]}", phase) for phase in colours]
    if len(phases) > len(colours):
        legend.append(("p-idle-other", f"{len(phases) - len(colours)} other phases"))
    top = max(sum(m.live_by_phase_bytes.values()) for m in analysis.memory)
    return stacked_bars(bars, "Memory live at the peak", size, unit=_unit(top)), tuple(legend)


def _peak_bar(memory: RankMemory, colours: Mapping[str, str]) -> Bar:
    live = memory.live_by_phase_bytes
    name = f"rank {memory.rank} · "
    segments = [
        Segment(live.get(phase, 0), f"p-{key}", f"{name}{phase}: {size(live.get(phase, 0))}")
        for phase, key in colours.items()
    ]
    rest = sum(v for phase, v in live.items() if phase not in colours)
    segments.append(Segment(rest, "p-idle-other", f"{name}other phases: {size(rest)}"))
    return Bar(f"rank {memory.rank}", tuple(segments), size(memory.allocated_peak_bytes))


def step_curves(analysis: Analysis) -> list[tuple[str, Markup]]:
    """Step time, throughput, loss, gradient norm and MaxVio over the run, each with its own axis."""
    steps = analysis.telemetry
    rates = [(s, s.tokens / s.duration_ns * 1e9) for s in steps if s.duration_ns]
    charts = [
        _step_curve("Step time", [(s, float(s.duration_ns)) for s in steps], duration, "l0"),
        _step_curve("Tokens per second", rates, count, "l2"),
        _step_curve("Loss", [(s, s.loss) for s in steps if s.loss is not None], ratio, "l1"),
        _step_curve("Gradient norm", [(s, s.gradient_norm) for s in steps if s.gradient_norm is not None], ratio, "l3"),
        _step_curve("MaxVio of ranks", [(s, s.maxvio_rank) for s in steps if s.maxvio_rank is not None], ratio, "l4"),
    ]
    return [chart_ for chart_ in charts if chart_]


def _step_curve(
    title: str, points: Sequence[tuple[TelemetryStep, float]], show: Callable[[float], str], class_: str
) -> tuple[str, Markup] | None:
    if len(points) < 2:
        return None
    curve = Curve(title, tuple((float(step.step), value) for step, value in points), class_)
    some = not all(step.profiled for step, _ in points)
    bands = [(float(step.step), float(step.step)) for step, _ in points if step.profiled and some]
    return title, curves(
        [curve], f"{title} over the run's steps", count, show, height=170, width=WIDTH // 2, bands=bands
    )


def clock_chart(analysis: Analysis) -> Markup:
    """Each host's bracket around its estimate, on one axis of the deviation from the estimate."""
    left, right, height = 190, 150, 26
    reach = max([1] + [max(c.high_ns - c.offset_ns, c.offset_ns - c.low_ns) for c in analysis.clock])
    centre = left + (WIDTH - left - right) / 2
    scale = (WIDTH - left - right) / 2 / reach
    bottom = height * len(analysis.clock) + 4
    parts = [line(centre + f * reach * scale, 0, centre + f * reach * scale, bottom, "grid") for f in (-1, 0, 1)]
    for index, clock in enumerate(analysis.clock):
        y = index * height + 4
        low, high = (clock.low_ns - clock.offset_ns) * scale, (clock.high_ns - clock.offset_ns) * scale
        title = f"{clock.host}: {duration(clock.low_ns)} to {duration(clock.high_ns)}, {clock.method}"
        parts.append(text(left - 8, y + 13, shorten(clock.host, 24), anchor="end"))
        parts.append(rect(centre + low, y + 4, max(high - low, 1.0), 10, class_="bracket", title=title))
        parts.append(tag("circle", cx=float(centre), cy=float(y + 9), r=4.0, class_="estimate"))
        parts.append(text(WIDTH - right + 14, y + 13, f"offset {duration(clock.offset_ns)}", class_="t num"))
    for share in (-1, 0, 1):
        name = "estimate" if share == 0 else f"{'−' if share < 0 else '+'}{duration(reach)}"
        parts.append(text(centre + share * reach * scale, bottom + 14, name, anchor="middle", class_="t dim"))
    return chart(bottom + 20, "Brackets of the clock offsets", parts)
