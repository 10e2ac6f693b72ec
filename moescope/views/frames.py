"""The analysis as polars frames, one per table: for notebooks and for export.

Columns are named as in :mod:`moescope.views.model`, base units in the names; what is nested there is a table of its own
here (``parts``, ``load_experts``, ``memory_live``, ...). A table has its columns and types also when it has no rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

import polars as pl

from moescope.findings import Finding
from moescope.views import model
from moescope.views.json import plain
from moescope.views.library import LibraryCollective
from moescope.views.model.host import IdleCause, Launches
from moescope.views.model.memory import DriverCalls, MemorySnapshot, MemoryTrade, StepPeak, TokenMemory
from moescope.views.model.router import HostTraffic, RouterLayer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_TYPES: dict[str, pl.DataType] = {
    "int": pl.Int64(),
    "float": pl.Float64(),
    "str": pl.String(),
    "bool": pl.Boolean(),
    "tuple[int, ...]": pl.List(pl.Int64()),
    "tuple[float, ...]": pl.List(pl.Float64()),
    "tuple[str, ...]": pl.List(pl.String()),
}
"""Annotation of a field -> type of its column; fields of other types are no columns."""


def flat(
    kind: type[DataclassInstance], rows: Sequence[DataclassInstance], *, without: Sequence[str] = ()
) -> pl.DataFrame:
    """Return one row per dataclass, with its plain fields except ``without`` as columns."""
    columns = []
    for field in fields(kind):
        dtype = _TYPES.get(str(field.type).removesuffix(" | None"))
        if dtype is not None and field.name not in without:
            values = [getattr(row, field.name) for row in rows]
            columns.append(pl.Series(field.name, values, dtype))
    return pl.DataFrame(columns)


def _ranks(analysis: model.Analysis) -> pl.DataFrame:
    unions = flat(model.Unions, [row.unions_ns for row in analysis.ranks])
    return flat(model.RankStep, analysis.ranks).with_columns(
        unions.select(pl.all().name.map(lambda n: f"union_{n}_ns"))
    )


def _parts(analysis: model.Analysis) -> pl.DataFrame:
    rows = [(row.rank, row.step, part, ns) for row in analysis.ranks for part, ns in row.parts_ns.items()]
    return _table(rows, rank=pl.Int64(), step=pl.Int64(), part=pl.String(), ns=pl.Int64())


def _findings(analysis: model.Analysis) -> pl.DataFrame:
    evidence = [json.dumps(plain(finding.evidence)) for finding in analysis.findings]
    return flat(Finding, analysis.findings).with_columns(pl.Series("evidence", evidence, pl.String()))


def _collectives(analysis: model.Analysis) -> pl.DataFrame:
    members = [member for collective in analysis.collectives for member in collective.by_rank]
    repeated = [collective for collective in analysis.collectives for _ in collective.by_rank]
    return flat(model.Collective, repeated).hstack(flat(model.CollectiveRank, members))


def _layers(analysis: model.Analysis) -> Sequence[model.LoadLayer]:
    return () if analysis.load is None else analysis.load.layers


def _load_experts(analysis: model.Analysis) -> pl.DataFrame:
    rows = [(layer.layer, expert, n) for layer in _layers(analysis) for expert, n in enumerate(layer.expert_tokens)]
    return _table(rows, layer=pl.Int64(), expert=pl.Int64(), tokens=pl.Float64())


def _load_ranks(analysis: model.Analysis) -> pl.DataFrame:
    ranks = () if analysis.load is None else analysis.load.ranks
    rows = [
        (layer.layer, rank, tokens)
        for layer in _layers(analysis)
        for rank, tokens in zip(ranks, layer.rank_tokens, strict=True)
    ]
    return _table(rows, layer=pl.Int64(), rank=pl.Int64(), tokens=pl.Float64())


def _memory_series(analysis: model.Analysis) -> pl.DataFrame:
    rows = []
    for memory in analysis.memory:
        reserved = dict(memory.reserved_series)
        rows += [(memory.rank, time_ns, allocated, reserved.get(time_ns)) for time_ns, allocated in memory.series]
    return _table(rows, rank=pl.Int64(), time_ns=pl.Int64(), allocated_bytes=pl.Int64(), reserved_bytes=pl.Int64())


def _memory_live(analysis: model.Analysis) -> pl.DataFrame:
    rows = [
        (memory.rank, phase, live) for memory in analysis.memory for phase, live in memory.live_by_phase_bytes.items()
    ]
    return _table(rows, rank=pl.Int64(), phase=pl.String(), live_bytes=pl.Int64())


def _memory_owners(analysis: model.Analysis) -> pl.DataFrame:
    rows = [
        (memory.rank, by, what, live)
        for memory in analysis.memory
        for by, held in (("layer", memory.live_by_layer_bytes), ("operation", memory.live_by_operation_bytes))
        for what, live in held.items()
    ]
    return _table(rows, rank=pl.Int64(), by=pl.String(), what=pl.String(), live_bytes=pl.Int64())


def _table(rows: Sequence[tuple[object, ...]], **schema: pl.DataType) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=schema, orient="row")


TABLES: dict[str, Callable[[model.Analysis], pl.DataFrame]] = {
    "steps": lambda a: flat(model.Step, a.steps),
    "ranks": _ranks,
    "parts": _parts,
    "clock": lambda a: flat(model.Clock, a.clock),
    "waits": lambda a: flat(model.Wait, a.waits),
    "wait_edges": lambda a: flat(model.WaitEdge, a.wait_edges),
    "causes": lambda a: flat(model.Cause, a.causes),
    "findings": _findings,
    "missing": lambda a: flat(model.Missing, a.missing),
    "collectives": _collectives,
    "library": lambda a: flat(LibraryCollective, a.library),
    "load_layers": lambda a: flat(model.LoadLayer, _layers(a), without=("expert_tokens", "rank_tokens")),
    "load_intervals": lambda a: flat(model.LoadInterval, () if a.load is None else a.load.intervals),
    "load_experts": _load_experts,
    "load_ranks": _load_ranks,
    "memory": lambda a: flat(model.RankMemory, a.memory),
    "memory_series": _memory_series,
    "memory_live": _memory_live,
    "memory_owners": _memory_owners,
    "memory_tokens": lambda a: flat(TokenMemory, a.memory_use.tokens),
    "memory_trades": lambda a: flat(MemoryTrade, a.memory_use.trades),
    "memory_driver": lambda a: flat(DriverCalls, a.memory_use.driver),
    "memory_steps": lambda a: flat(StepPeak, a.memory_use.steps),
    "memory_snapshots": lambda a: flat(MemorySnapshot, a.memory_use.snapshots),
    "idle": lambda a: flat(IdleCause, a.host.idle),
    "launches": lambda a: flat(Launches, a.host.launches),
    "telemetry": lambda a: flat(model.TelemetryStep, a.telemetry),
    "sources": lambda a: flat(model.Source, a.sources),
    "routers": lambda a: flat(RouterLayer, a.routers),
    "traffic": lambda a: flat(HostTraffic, a.traffic),
}
"""Name of each table -> how it is made."""


def frame(analysis: model.Analysis, table: str) -> pl.DataFrame:
    """Return one table of :data:`TABLES`."""
    return TABLES[table](analysis)
