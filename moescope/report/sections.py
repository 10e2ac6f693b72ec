"""The report's sections in reading order: each panel with its charts, legend and cut tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from markupsafe import Markup

from moescope.report import charts, heat, lines, products
from moescope.views.model import Analysis
from moescope.views.panels import Matrix, Panel, Table, spread
from moescope.views.panels import comm as panels_comm
from moescope.views.panels import gemm as panels_gemm
from moescope.views.panels import groups as panels_groups
from moescope.views.panels import host as panels_host
from moescope.views.panels import library as panels_library
from moescope.views.panels import load as panels_load
from moescope.views.panels import memory as panels_memory
from moescope.views.panels import path as panels_path
from moescope.views.panels import router as panels_router
from moescope.views.panels import run as panels_run
from moescope.views.panels import step as panels_step
from moescope.views.text import FORMATS, count, duration, size


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a table or heat map is embedded."""

    rows: int
    columns: int
    values: bool = True
    """Whether heat maps carry the numbers that their tooltips show."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A chart with its legend as (class, label) and, for heat maps, the values its tooltips show."""

    svg: Markup
    legend: tuple[tuple[str, str], ...] = ()
    matrix: Matrix | None = None
    title: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A panel as it is printed."""

    panel: Panel
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()
    cuts: tuple[str, ...] = field(default=())
    """What was left out, in words."""


_Panel = Callable[[Analysis], Panel]
_Draw = Callable[[Analysis], list[Picture]]


def sections(analysis: Analysis) -> list[Section]:
    """All sections after the verdict, whole."""
    whole = []
    for panel_of, draw in _ORDER:
        panel = panel_of(analysis)
        whole.append(Section(panel, tuple(draw(analysis)) if draw and not panel.empty else (), panel.tables))
    return whole


def cut(section: Section, limits: Limits) -> Section:
    """``section`` within ``limits``."""
    cuts: list[str] = []
    tables = tuple(_cut(table, limits, cuts) for table in section.tables)
    pictures = section.pictures
    if not limits.values and any(picture.matrix for picture in pictures):
        pictures = tuple(replace(picture, matrix=None) for picture in pictures)
        cuts.append("the numbers of the heat map's cells.")
    return replace(section, pictures=pictures, tables=tables, cuts=tuple(cuts))


def _cut(table: Table, limits: Limits, cuts: list[str]) -> Table:
    rows, columns = table.rows, table.columns
    if len(rows) > limits.rows:
        cuts.append(f"Table “{table.key}”: the first {count(limits.rows)} of {count(len(rows))} rows.")
        rows = rows[: limits.rows]
    if len(columns) > limits.columns:
        cuts.append(f"Table “{table.key}”: the first {count(limits.columns)} of {count(len(columns))} columns.")
        columns, rows = columns[: limits.columns], tuple(row[: limits.columns] for row in rows)
    return replace(table, columns=columns, rows=rows)


def _named_ranks(analysis: Analysis) -> set[int]:
    named = {f.rank for f in analysis.findings} | {c.rank for c in analysis.causes}
    return {rank for rank in named if rank is not None}


def _parts(analysis: Analysis) -> list[Picture]:
    rows = panels_step.rank_parts(analysis)
    groups = panels_step.used_groups(rows)
    named = _named_ranks(analysis)
    shown = spread(len(rows), [i for i, row in enumerate(rows) if row.rank in named])
    legend = tuple((f"p-{group.key}", group.label) for group in groups)
    title = "" if len(shown) == len(rows) else f"{len(shown)} of {len(rows):,} ranks; the table has all"
    return [Picture(charts.parts_chart([rows[i] for i in shown], groups), legend, title=title)]


def _waits(analysis: Analysis) -> list[Picture]:
    rows = panels_comm.rank_waits(analysis)
    named = _named_ranks(analysis)
    shown = spread(len(rows), [i for i, row in enumerate(rows) if row.rank in named])
    legend = (("w-removable", "Removable wait"), ("w-overlapped", "Other arrival wait"), ("w-transfer", "Transfer"))
    title = "Arrival wait is written at the end of each bar"
    if len(shown) < len(rows):
        title += f"; {len(shown)} of {len(rows):,} ranks, the table has all"
    return [Picture(charts.waits_chart([rows[i] for i in shown]), legend, title=title)]


def _edges(analysis: Analysis) -> list[Picture]:
    matrix = panels_comm.wait_matrix(analysis)
    total = len({edge.waiter for edge in analysis.wait_edges} | {edge.late for edge in analysis.wait_edges})
    title = f"The {len(matrix.rows)} of {total:,} ranks with the most waiting" if len(matrix.rows) < total else ""
    return [replace(_amounts(matrix, "Who waits for whom", duration), title=title)]


def _stragglers(analysis: Analysis) -> list[Picture]:
    matrix = panels_groups.straggler_matrix(analysis)
    title = "How long the others waited for each rank, over the profiled time in ms"
    return [replace(_amounts(matrix, "Stragglers over time", duration), title=title)]


def _amounts(matrix: Matrix, label: str, show: Callable[[float], str]) -> Picture:
    top = max((v for row in matrix.values for v in row if v is not None), default=0.0)
    levels = [[heat.amount_level(v, top) for v in row] for row in matrix.values]
    names = [show(top * i / 2) for i in range(3)]
    scale = heat.scale_bar(names, "none", "most", (heat.LEVELS - 1) // 2)
    return Picture(heat.heat_map(matrix, levels, label) + scale, matrix=matrix)


def _balance(matrix: Matrix, label: str, beside: heat.Observed) -> Picture:
    limit = panels_load.balance_limit(matrix)
    levels = [[heat.balance_level(v, limit) for v in row] for row in matrix.values]
    names = [panels_load.POWERS[power] for power in range(-limit, limit + 1)]
    svg = heat.heat_map(matrix, levels, label, beside) + heat.scale_bar(names, "below the mean", "above the mean")
    return Picture(svg, matrix=matrix)


def _experts(analysis: Analysis) -> list[Picture]:
    matrix = panels_load.expert_matrix(analysis.load) if analysis.load else None
    if analysis.load is None or matrix is None:
        return []
    layers = [layer for layer in analysis.load.layers if layer.expert_tokens]
    beside = [(layer.maxvio_expert, layer.maxvio_expert_floor) for layer in layers]
    return [_balance(matrix, "Load of experts by layer, as multiples of the mean", beside)]


def _ranks(analysis: Analysis) -> list[Picture]:
    if analysis.load is None:
        return []
    beside = [(layer.maxvio_rank, layer.maxvio_rank_floor) for layer in analysis.load.layers]
    matrix = panels_load.rank_matrix(analysis.load)
    return [_balance(matrix, "Load of ranks by layer, as multiples of the mean", beside)]


def _intervals(analysis: Analysis) -> list[Picture]:
    matrix = panels_load.interval_matrix(analysis.load) if analysis.load else None
    return [] if matrix is None else [_amounts(matrix, "MaxVio of ranks by layer and microbatch", FORMATS["ratio"])]


def _history(analysis: Analysis) -> list[Picture]:
    if analysis.load is None or not analysis.load.intervals:
        return []
    chosen = panels_router.chosen_layer(analysis.load, None)
    made = next(one for one in panels_router.histories(analysis.load) if one.layer == chosen)
    if len(made.steps) < 2:
        return []
    mean_ = charts.Curve(f"layer {chosen}, mean", tuple(zip(made.steps, made.maxvio_rank, strict=True)), "l1")
    worst = charts.Curve("worst microbatch", tuple(zip(made.steps, made.worst_rank, strict=True)), "l3")
    show, limit = FORMATS["ratio"], (made.floor, "random floor")
    svg = charts.curves([mean_, worst], "MaxVio of ranks", lambda step: str(round(step)), show, limit=limit)
    legend = (("k1", f"Layer {chosen}, mean over microbatches"), ("k3", "Its worst microbatch"))
    return [Picture(svg, legend, title="MaxVio of ranks by step")]


def _traffic(analysis: Analysis) -> list[Picture]:
    matrix = panels_router.traffic_matrix(analysis)
    return [_amounts(matrix, "Bytes per step from host to host", size)] if len(matrix.rows) > 1 else []


def _rates(analysis: Analysis) -> list[Picture]:
    return [Picture(*products.rates_chart(analysis.gemm))] if analysis.gemm else []


_LOSS_TITLE = "at the end of each bar the loss per rank and step, less what a negative residual (not drawn) regains"


def _losses(analysis: Analysis) -> list[Picture]:
    rows = panels_gemm.bucket_rows(analysis.gemm) if analysis.gemm else []
    title = f"Rows per expert; {_LOSS_TITLE}"
    return [Picture(*products.losses_chart(rows, "Loss by rows per expert"), title=title)] if rows else []


def _layer_losses(analysis: Analysis) -> list[Picture]:
    rows = panels_gemm.layer_rows(analysis.gemm) if analysis.gemm else []
    title = _LOSS_TITLE.capitalize()
    return [Picture(*products.losses_chart(rows, "Loss by layer"), title=title)] if rows else []


def _host(analysis: Analysis) -> list[Picture]:
    rows = panels_step.rank_parts(analysis)
    named = _named_ranks(analysis)
    shown = spread(len(rows), [i for i, row in enumerate(rows) if row.rank in named])
    title = "" if len(shown) == len(rows) else f"{len(shown)} of {len(rows):,} ranks; the table has all"
    return [Picture(*products.host_chart([rows[i] for i in shown]), title=title)]


def _some(legend: lines.Legend, analysis: Analysis) -> str:
    total = len(analysis.memory)
    return f"; {len(legend)} of {total:,} ranks, the table has all" if len(legend) < total else ""


def _extremes(analysis: Analysis) -> list[int]:
    """Positions of the highest and the lowest peak and of the ranks that findings name."""
    named = _named_ranks(analysis)
    order = sorted(range(len(analysis.memory)), key=lambda i: -analysis.memory[i].allocated_peak_bytes)
    return [order[0], order[-1], *(i for i in order if analysis.memory[i].rank in named)]


def _memory(analysis: Analysis) -> list[Picture]:
    if not any(m.series for m in analysis.memory):
        return []
    shown = spread(len(analysis.memory), _extremes(analysis), lines.NUM_COLOURS)
    svg, legend = lines.memory_curves(analysis, shown)
    return [Picture(svg, legend, title="Allocated over the profiled window" + _some(legend, analysis))]


def _peaks(analysis: Analysis) -> list[Picture]:
    bars, legend = lines.memory_peaks(analysis, spread(len(analysis.memory), _extremes(analysis)))
    return [Picture(bars, legend)]


def _steps(analysis: Analysis) -> list[Picture]:
    return [Picture(svg, title=title) for title, svg in lines.step_curves(analysis)]


def _clock(analysis: Analysis) -> list[Picture]:
    if len(analysis.clock) < 2:
        return []
    legend = (("bracket", "Bracket that contains the offset"), ("estimate", "Estimate"))
    return [Picture(lines.clock_chart(analysis), legend)]


_ORDER: tuple[tuple[_Panel, _Draw | None], ...] = (
    (panels_step.parts_panel, _parts),
    (panels_step.causes_panel, None),
    (panels_path.path_panel, None),
    (panels_comm.waits_panel, _waits),
    (panels_comm.edges_panel, _edges),
    (panels_groups.stragglers_panel, _stragglers),
    (panels_groups.groups_panel, None),
    (panels_load.rank_panel, _ranks),
    (panels_load.expert_panel, _experts),
    (panels_load.interval_panel, _intervals),
    (panels_router.history_panel, _history),
    (panels_router.routers_panel, None),
    (panels_router.traffic_panel, _traffic),
    (panels_comm.collectives_panel, None),
    (panels_library.library_panel, None),
    (panels_gemm.rates_panel, _rates),
    (panels_gemm.losses_panel, _losses),
    (panels_gemm.layer_losses_panel, _layer_losses),
    (panels_gemm.expert_losses_panel, None),
    (panels_host.host_panel, _host),
    (panels_host.idle_panel, None),
    (panels_host.launches_panel, None),
    (panels_run.memory_panel, _memory),
    (panels_run.peaks_panel, _peaks),
    (panels_memory.tokens_panel, None),
    (panels_memory.trades_panel, None),
    (panels_memory.driver_panel, None),
    (panels_memory.step_peaks_panel, None),
    (panels_memory.snapshots_panel, None),
    (panels_step.steps_panel, _steps),
    (panels_comm.clock_panel, _clock),
    (panels_run.missing_panel, None),
    (panels_run.sources_panel, None),
    (panels_run.provenance_panel, None),
)
