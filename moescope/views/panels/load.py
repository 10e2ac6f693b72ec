"""Panels about load: experts and ranks by layer, over microbatches, against what random routing gives."""

from __future__ import annotations

import math

from moescope.views.model import Analysis, Load
from moescope.views.panels import Column, Empty, Matrix, Panel, Table
from moescope.views.text import duration, factor, plural, ratio

NO_COUNTS = Empty(
    "There are no expert counts: neither telemetry, nor split sizes of the dispatch, nor grouped-GEMM shapes.",
    "Attach moescope_hooks.observe(model, out=RUN), or record split sizes with record_shapes=True.",
)
NO_EXPERTS = Empty(
    "Only the tokens of whole ranks are known; counts per expert are not recorded.",
    "Attach moescope_hooks.observe(model, out=RUN).",
)
SOURCES = {
    "telemetry": "counts recorded by the hooks",
    "splits": "split sizes of the dispatch in the trace",
    "grouped_gemm": "shapes of the grouped GEMMs in the trace",
}


def _relative(values: tuple[float, ...]) -> tuple[float | None, ...]:
    mean = sum(values) / len(values) if values else 0.0
    return tuple(value / mean if mean else None for value in values)


POWERS = {-3: "⅛×", -2: "¼×", -1: "½×", 0: "1×", 1: "2×", 2: "4×", 3: "8×"}
"""Ticks of the colour scale of a balance."""


def balance_limit(matrix: Matrix) -> int:
    """Powers of two that the colours reach to either side of the mean: 1, 2 or 3."""
    logs = [abs(math.log2(v)) for row in matrix.values for v in row if v]
    return min(3, max(1, math.ceil(max(logs, default=1.0) - 0.25)))


def expert_matrix(load: Load) -> Matrix | None:
    """Layers (rows) by experts (columns), as multiples of the layer's mean; None where experts aren't known."""
    layers = [layer for layer in load.layers if layer.expert_tokens]
    if not layers:
        return None
    width = max(len(layer.expert_tokens) for layer in layers)
    values = tuple(_relative(layer.expert_tokens) + (None,) * (width - len(layer.expert_tokens)) for layer in layers)
    return Matrix("layer", "expert", tuple(layer.layer for layer in layers), tuple(range(width)), values, "factor")


def rank_matrix(load: Load) -> Matrix:
    """Layers (rows) by ranks (columns), as multiples of the layer's mean."""
    values = tuple(_relative(layer.rank_tokens) for layer in load.layers)
    return Matrix("layer", "rank", tuple(layer.layer for layer in load.layers), load.ranks, values, "factor")


def interval_matrix(load: Load, most: int = 240) -> Matrix | None:
    """Layers (rows) by step and microbatch (columns): MaxVio of ranks in each short interval.

    Beyond ``most`` columns, neighbours share one that shows their maximum, so that no bad interval disappears.
    """
    if not load.intervals:
        return None
    times = sorted({(i.step, i.microbatch) for i in load.intervals})
    layers = sorted({i.layer for i in load.intervals})
    width = -(-len(times) // most)
    column = {time: index // width for index, time in enumerate(times)}
    names = tuple(_span(times[i : i + width]) for i in range(0, len(times), width))
    cells: list[list[float | None]] = [[None] * len(names) for _ in layers]
    row = {layer: index for index, layer in enumerate(layers)}
    for i in load.intervals:
        r, c = row[i.layer], column[i.step, i.microbatch]
        cells[r][c] = max(cells[r][c] or 0.0, i.maxvio_rank)
    return Matrix("layer", "step.microbatch", tuple(layers), names, tuple(tuple(line) for line in cells), "ratio")


def _span(times: list[tuple[int, int]]) -> str:
    first, last = (f"{step}.{microbatch}" for step, microbatch in (times[0], times[-1]))
    return first if len(times) == 1 else f"{first}–{last}"


def expert_panel(analysis: Analysis) -> Panel:
    """Load of every expert in every layer."""
    key, title, question = "experts", "Load of experts", "Which experts are hot, in which layer?"
    matrix = expert_matrix(analysis.load) if analysis.load else None
    if analysis.load is None or matrix is None:
        return Panel(key, title, question, empty=NO_EXPERTS if analysis.load else NO_COUNTS)
    layers = [layer for layer in analysis.load.layers if layer.expert_tokens]
    cells = [
        (value, layer, expert)
        for layer, row in zip(layers, matrix.values, strict=True)
        for expert, value in enumerate(row)
        if value is not None
    ]
    if not cells:
        return Panel(key, title, question, empty=Empty("No expert received a token.", NO_COUNTS.how_to_record))
    value, layer, expert = max(cells, key=lambda cell: cell[0])
    reading = f"The hottest is expert {expert} of layer {layer.layer} with {factor(value)} the mean"
    if layer.maxvio_expert is not None and layer.maxvio_expert_floor is not None:
        reading += (
            f"; the layer's MaxVio is {ratio(layer.maxvio_expert)}, random routing alone gives "
            f"{ratio(layer.maxvio_expert_floor)}"
        )
    columns = (Column("layer", "id"), *(Column(f"expert {e}", "count") for e in matrix.columns))
    rows = tuple((x.layer, *x.expert_tokens, *(None,) * (len(matrix.columns) - len(x.expert_tokens))) for x in layers)
    caption = "Mean assignments per microbatch."
    tables = (Table("experts", columns, rows, caption), _summary(analysis.load))
    return Panel(key, title, question, reading + ".", tables)


def rank_panel(analysis: Analysis) -> Panel:
    """Load of every rank in every layer."""
    key, title, question = "ranks", "Load of ranks", "Which rank gets more tokens than it should, in which layer?"
    load = analysis.load
    if load is None or not load.layers:
        return Panel(key, title, question, empty=NO_COUNTS)
    worst = max(load.layers, key=lambda layer: layer.maxvio_rank)
    reading = (
        f"Layer {worst.layer} is the least balanced: rank {worst.hottest_rank} gets {factor(1 + worst.maxvio_rank)} "
        f"the mean; MaxVio {ratio(worst.maxvio_rank)}, random routing alone gives {ratio(worst.maxvio_rank_floor)}."
    )
    if load.cost_ns_per_step is not None:
        reading += f" Experts of the busiest ranks take {duration(load.cost_ns_per_step)} per step more than the mean."
    columns = (Column("layer", "id"), *(Column(f"rank {r}", "count") for r in load.ranks))
    rows = tuple((layer.layer, *layer.rank_tokens) for layer in load.layers)
    notes = (
        f"Counts: {SOURCES.get(load.source, load.source)}. Uneven expert time: {load.cost_basis or 'not known'}.",
        "Tokens and hardware both make expert time uneven; what others wait for tokens is the load-imbalance finding.",
    )
    caption = "Mean assignments received per microbatch."
    return Panel(key, title, question, reading, (Table("ranks", columns, rows, caption), _summary(load)), notes=notes)


def _summary(load: Load) -> Table:
    columns = (
        Column("layer", "id"),
        Column("MaxVio ranks", "ratio"),
        Column("random floor", "ratio"),
        Column("MaxVio experts", "ratio"),
        Column("random floor", "ratio"),
        Column("hottest rank", "id"),
        Column("dead experts", "count"),
        Column("dropped", "percent"),
        Column("entropy", "ratio"),
        Column("uneven expert time per step", "duration"),
    )
    rows = tuple(
        (x.layer, x.maxvio_rank, x.maxvio_rank_floor, x.maxvio_expert, x.maxvio_expert_floor, x.hottest_rank,
         x.num_dead_experts, x.dropped_share, x.entropy, x.cost_ns_per_step)
        for x in load.layers
    )  # fmt: skip
    return Table("layers", columns, rows, "MaxVio = (max − mean) / mean, mean over microbatches.")


def interval_panel(analysis: Analysis) -> Panel:
    """Balance in every short interval, which means over the run hide."""
    key, title, question = "intervals", "Balance over microbatches", "Is a layer unbalanced always, or now and then?"
    load = analysis.load
    if load is None or not load.intervals:
        return Panel(key, title, question, empty=NO_COUNTS)
    worst = max(load.intervals, key=lambda i: i.maxvio_rank)
    reading = (
        f"{plural(len(load.intervals), 'interval')}; the worst is layer {worst.layer} in step {worst.step}, microbatch "
        f"{worst.microbatch}, where rank {worst.hottest_rank} gets {factor(1 + worst.maxvio_rank)} the mean."
    )
    columns = (
        Column("step", "id"),
        Column("microbatch", "id"),
        Column("layer", "id"),
        Column("MaxVio ranks", "ratio"),
        Column("MaxVio experts", "ratio"),
        Column("hottest rank", "id"),
        Column("hottest expert", "id"),
    )
    rows = tuple(
        (i.step, i.microbatch, i.layer, i.maxvio_rank, i.maxvio_expert, i.hottest_rank, i.hottest_expert)
        for i in load.intervals
    )
    return Panel(key, title, question, reading, (Table("intervals", columns, rows),))
