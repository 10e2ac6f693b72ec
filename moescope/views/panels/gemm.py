"""Panels about matrix products: their rate against tokens per expert, and what small ones lose, and to what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from moescope.views.model import Analysis
from moescope.views.model.gemm import Gemm, GemmBucket, GemmCost, GemmCurve, GemmReference
from moescope.views.panels import Cell, Column, Empty, Panel, Table
from moescope.views.text import count, duration, percent, plural, significant

NO_SHAPES = Empty(
    "The traces record no shapes of matrix products, so their rates are not known.",
    "Record with record_shapes=True.",
)
NO_PRODUCTS = Empty(
    "The recorded shapes belong to no product whose kernels were timed.",
    "Record the device's kernels (ProfilerActivity.CUDA) together with record_shapes=True.",
)
NO_LAYERS = Empty(
    "No expert product could be assigned to a layer.",
    "Train inside moescope_hooks.observe(model, out=RUN), which marks the layers, and record with record_shapes=True.",
)
NO_EXPERTS = Empty(
    "The experts of a rank cannot be told apart: their products are grouped, and no counts say the rows of each.",
    "Train inside moescope_hooks.observe(model, out=RUN), which records the counts.",
)
LOSSES = {
    "memory": "memory roofline",
    "tile": "tile padding",
    "wave": "wave quantisation",
    "launch": "launch gaps",
    "residual": "residual",
}
"""Kind of loss -> its name, in the order in which the loss is split."""
SOURCES = {"baseline": "measured baseline"}
MOST_CURVES = 6
NUM_FIT_POINTS = 49


@dataclass(frozen=True, slots=True)
class RateCurve:
    """One weight's rate over rows per expert: ``points`` (rows, TFLOP/s, calls), and the fitted line as rates."""

    label: str
    dtype: str
    points: tuple[tuple[float, float, int], ...]
    fit: tuple[tuple[float, float], ...]
    """Empty where rows vary too little for a line."""
    half_rows: float | None
    """Rows at which the fixed time is as long as that of the rows: half of what the line tends to."""


@dataclass(frozen=True, slots=True)
class LossRow:
    """Products of one sort with what they lose, per rank and step."""

    label: str
    cost: GemmCost


def rate_curves(gemm: Gemm, most: int = MOST_CURVES) -> list[RateCurve]:
    """The weights to draw: grouped products first, then those with a fitted line and the most calls."""

    def order(curve: GemmCurve) -> tuple[bool, bool, int, int, int]:
        calls = sum(point[2] for point in curve.points)
        return curve.groups <= 1, curve.fixed_ns is None, -calls, curve.n, curve.k

    return [_rate_curve(curve) for curve in sorted(gemm.curves, key=order)[:most]]


def _rate_curve(curve: GemmCurve) -> RateCurve:
    flops_per_row = 2.0 * curve.groups * curve.n * curve.k
    timed = (point for point in curve.points if min(point[:2]) > 0)
    points = tuple((rows, flops_per_row * rows / ns / 1e3, calls) for rows, ns, calls in timed)
    groups = f"{curve.groups} × " if curve.groups > 1 else ""
    label = f"{groups}{curve.k:,} → {curve.n:,}, {curve.dtype}"
    fixed, slope = curve.fixed_ns, curve.ns_per_row
    if fixed is None or slope is None or slope <= 0 or not points:
        return RateCurve(label, curve.dtype, points, (), None)
    low, high = points[0][0], points[-1][0]
    rows = [low * (high / low) ** (i / (NUM_FIT_POINTS - 1)) for i in range(NUM_FIT_POINTS)]
    times = [(r, fixed + slope * r) for r in rows]
    fit = tuple((r, flops_per_row * r / ns / 1e3) for r, ns in times if ns > 0)
    return RateCurve(label, curve.dtype, points, fit, max(fixed, 0.0) / slope)


def reference_label(reference: GemmReference) -> str:
    """The reference in words: its rate, type and where it comes from."""
    source = SOURCES.get(reference.source, reference.source)
    return f"{significant(reference.rate_tflops)} TFLOP/s {reference.dtype}: {source}"


def drawn_references(gemm: Gemm, curves: Sequence[RateCurve]) -> list[GemmReference]:
    """The references of the element types that ``curves`` show."""
    dtypes = {curve.dtype for curve in curves}
    return [reference for reference in gemm.references if reference.dtype in dtypes]


def rates_panel(analysis: Analysis) -> Panel:
    """Rate against rows per expert, with the references it is held against."""
    key, title, question = "rates", "Rate of matrix products", "Do experts get enough tokens to run at full rate?"
    gemm = analysis.gemm
    if gemm is None:
        return Panel(key, title, question, empty=NO_SHAPES)
    curves = rate_curves(gemm, len(gemm.curves))
    if not any(curve.points for curve in curves):
        return Panel(key, title, question, empty=NO_PRODUCTS)
    notes = [f"Of {plural(len(curves), 'weight')}, {MOST_CURVES} are drawn."] if len(curves) > MOST_CURVES else []
    tables = (_rates_table(curves), _reference_table(gemm))
    return Panel(key, title, question, _rates_reading(gemm, curves), tables, notes=(*notes, *_notes(gemm)))


def _rates_table(curves: Sequence[RateCurve]) -> Table:
    columns = (
        Column("weight"),
        Column("rows per expert", "count"),
        Column("TFLOP/s", "ratio"),
        Column("calls", "count"),
    )
    rows = tuple((curve.label, *point) for curve in curves for point in curve.points)
    return Table("rates", columns, rows, "Median over the calls; a product that is not grouped counts as one expert.")


def _reference_table(gemm: Gemm) -> Table:
    columns = (
        Column("device"),
        Column("type"),
        Column("reference, TFLOP/s", "ratio"),
        Column("from"),
        Column("products behind it", "count"),
        Column("data sheet's dense peak, TFLOP/s", "ratio"),
        Column("memory, GB/s", "count"),
    )
    rows = tuple(
        (r.device, r.dtype, r.rate_tflops, SOURCES.get(r.source, r.source), r.num_calls, r.peak_tflops,
         r.memory_gb_per_s)
        for r in gemm.references
    )  # fmt: skip
    return Table("references", columns, rows, "What rates are held against.")


def _notes(gemm: Gemm) -> Iterator[str]:
    if gemm.covered_share < 0.995:
        yield f"Shapes are recorded for {percent(gemm.covered_share)} of the products' time; the rest is left out."
    if gemm.utilisation is not None:
        bound = "at least " if gemm.covered_share < 0.995 else ""
        yield f"Model FLOPs utilisation: {bound}{percent(gemm.utilisation)} of the dense peak."


def _rates_reading(gemm: Gemm, curves: Sequence[RateCurve]) -> str:
    first = next((curve for curve in curves if curve.fit), curves[0])
    rows, rate, _ = max(first.points, key=lambda point: (point[2], point[0]))
    text = f"{first.label}: {significant(rate)} TFLOP/s at {count(rows)} rows"
    reference = next((r for r in gemm.references if r.dtype == first.dtype), None)
    if reference is not None and reference.rate_tflops > 0:
        text += f", {percent(rate / reference.rate_tflops)} of the reference ({reference_label(reference)})"
    if first.half_rows is not None:
        text += f"; half of the full rate takes {count(round(first.half_rows))} rows"
    if gemm.rows_per_expert_median is not None:
        text += f". An expert gets {count(round(gemm.rows_per_expert_median))} rows at the median"
    return text + "."


def bucket_label(bucket: GemmBucket) -> str:
    """``64–127``, ``≥ 2,048``."""
    if bucket.high_rows is None:
        return f"≥ {bucket.low_rows:,}"
    return f"{bucket.low_rows:,}–{bucket.high_rows - 1:,}"


def bucket_rows(gemm: Gemm) -> list[LossRow]:
    """The experts' products by rows per expert."""
    return [LossRow(bucket_label(bucket), bucket.cost) for bucket in gemm.buckets]


def layer_rows(gemm: Gemm) -> list[LossRow]:
    """The experts' products by layer."""
    return [LossRow(f"layer {layer.layer}", layer.cost) for layer in gemm.layers]


def losses_panel(analysis: Analysis) -> Panel:
    """What products lose against the reference, by rows per expert and by kind."""
    key, title = "losses", "Loss by tokens per expert"
    question = "What do small matrix products cost, and what is it lost to?"
    gemm = analysis.gemm
    if gemm is None:
        return Panel(key, title, question, empty=NO_SHAPES)
    sums = [("all experts", gemm.experts), ("other products", gemm.other)]
    rows = [*bucket_rows(gemm), *(LossRow(label, cost) for label, cost in sums if cost.time_ns_per_step)]
    if not rows:
        return Panel(key, title, question, empty=NO_PRODUCTS)
    notes = []
    if gemm.grouped_saving_ns_per_step > 0:
        saved, now = gemm.grouped_saving_ns_per_step, gemm.looped_ns_per_step
        notes.append(
            f"One grouped call in place of a call per expert would take {duration(max(now - saved, 0))} per rank and "
            f"step instead of {duration(now)}."
        )
    table = _loss_table("losses", "rows per expert", rows)
    return Panel(key, title, question, _loss_reading(gemm), (table,), notes=tuple(notes))


def layer_losses_panel(analysis: Analysis) -> Panel:
    """The same by layer."""
    key, title, question = "layerlosses", "Loss by layer", "Which layer's experts lose most?"
    gemm = analysis.gemm
    if gemm is None or not gemm.layers:
        return Panel(key, title, question, empty=NO_SHAPES if gemm is None else NO_LAYERS)
    worst = max(gemm.layers, key=lambda layer: layer.cost.loss_ns_per_step)
    cost = worst.cost
    reading = (
        f"Layer {worst.layer} loses most, {duration(cost.loss_ns_per_step)} of {duration(cost.time_ns_per_step)} "
        f"per rank and step, at {significant(cost.rate_tflops)} TFLOP/s."
    )
    return Panel(key, title, question, reading, (_loss_table("layerlosses", "experts of", layer_rows(gemm)),))


def expert_losses_panel(analysis: Analysis) -> Panel:
    """The same by expert of every rank."""
    key, title, question = "expertlosses", "Loss by expert", "Which rank's expert gets too few rows?"
    gemm = analysis.gemm
    if gemm is None or not gemm.by_expert:
        return Panel(key, title, question, empty=NO_SHAPES if gemm is None else NO_EXPERTS)
    columns = (
        Column("rank", "id"),
        Column("expert on its rank", "id"),
        Column("calls", "count"),
        Column("rows per call", "count"),
        Column("time", "ms"),
        Column("loss", "ms"),
    )
    body = tuple(
        (e.rank, e.expert, e.calls_per_step, e.rows, e.time_ns_per_step, e.loss_ns_per_step) for e in gemm.by_expert
    )
    fewest = min(gemm.by_expert, key=lambda e: e.rows)
    most = max(gemm.by_expert, key=lambda e: e.rows)
    reading = (
        f"Expert {fewest.expert} of rank {fewest.rank} gets fewest rows, {count(fewest.rows)} per call, and loses "
        f"{duration(fewest.loss_ns_per_step)} of {duration(fewest.time_ns_per_step)} per step; expert {most.expert} of "
        f"rank {most.rank} gets {count(most.rows)}."
    )
    shared = "Grouped calls are shared out over their experts by the rows that their tiles compute."
    notes = (shared,) if any(e.is_shared_out for e in gemm.by_expert) else ()
    caption = "Milliseconds per step, over all layers."
    return Panel(key, title, question, reading, (Table("expertlosses", columns, body, caption),), notes=notes)


def _loss_table(key: str, first: str, rows: Sequence[LossRow]) -> Table:
    columns = (
        Column(first),
        Column("calls", "count"),
        Column("time", "ms"),
        Column("TFLOP/s", "ratio"),
        Column("loss", "ms"),
        *(Column(name, "ms") for name in LOSSES.values()),
    )
    body: tuple[tuple[Cell, ...], ...] = tuple(
        (row.label, row.cost.calls_per_step, row.cost.time_ns_per_step, row.cost.rate_tflops,
         row.cost.loss_ns_per_step, *(row.cost.parts_ns_per_step.get(kind, 0) for kind in LOSSES))
        for row in rows
    )  # fmt: skip
    caption = (
        "Milliseconds per rank and step; loss is the time beyond FLOPs at the reference rate, and its kinds sum to it. "
        "A negative residual means kernels faster than these limits."
    )
    return Table(key, columns, body, caption)


def _loss_reading(gemm: Gemm) -> str:
    who, cost = ("The experts' products", gemm.experts)
    if not cost.time_ns_per_step:
        who, cost = ("Matrix products (none is known to be the experts')", gemm.other)
    loss, time = cost.loss_ns_per_step, cost.time_ns_per_step
    if loss <= 0:
        return f"{who} take {duration(time)} per rank and step and run at the reference rate."
    kind = max(LOSSES, key=lambda name: cost.parts_ns_per_step.get(name, 0))
    most = cost.parts_ns_per_step.get(kind, 0)
    critical = gemm.critical_loss_ns_per_step if gemm.experts.time_ns_per_step else None
    on_path = "" if critical is None else f" On the step's critical path they lose {duration(critical)} per step."
    why = f"most to {LOSSES[kind]} ({duration(most)})" if most <= loss else f"no more than {LOSSES[kind]} would explain"
    return (
        f"{who} lose {duration(loss)} of {duration(time)} per rank and step ({percent(loss / time)}) against the "
        f"reference, {why}.{on_path}"
    )
