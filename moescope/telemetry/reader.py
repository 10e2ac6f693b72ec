"""Reads run.json, the Parquet parts of the hooks and recordings of other tools, as far as they can be read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
from moescope_hooks.schema import TABLES, empty_table

from moescope.telemetry.blocks import is_packed, unpack_part
from moescope.telemetry.foreign import find_foreign
from moescope.telemetry.inspector import LIBRARY_COLLECTIVE, read_inspector
from moescope.telemetry.megatron import read_routing_traces

_ORDER = {
    "expert_load": ["step", "microbatch", "layer", "rank"],
    "collective": ["step", "group", "seq", "rank"],
    "step": ["step", "rank"],
    "clock": ["measured_at_ns", "rank", "peer"],
}


@dataclass(frozen=True)
class Telemetry:
    """The telemetry of one run; frames have the columns of :mod:`moescope_hooks.schema`, and may be empty."""

    run: Mapping[str, Any]
    """run.json as it was read; empty where absent or unreadable."""
    expert_load: pl.DataFrame
    """Sorted by step, microbatch, layer and rank."""
    collective: pl.DataFrame
    """Sorted by step, group, sequence number and rank."""
    step: pl.DataFrame
    """Sorted by step and rank."""
    clock: pl.DataFrame
    """Sorted by the time of measurement."""
    library: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=dict(LIBRARY_COLLECTIVE)))
    """Collectives as the communication library timed them; see ``inspector.LIBRARY_COLLECTIVE``."""
    problems: list[str] = field(default_factory=list)
    """What could not be read or was lost when it was recorded, and where."""


def open_telemetry(path: str | Path) -> Telemetry | None:
    """The telemetry under ``path``; None where it has none: no run.json, no telemetry/, nothing of another tool's."""
    root = Path(path)
    foreign = find_foreign(root)
    hooks_were_there = (root / "run.json").is_file() or (root / "telemetry").is_dir()
    if not hooks_were_there and not len(foreign):
        return None
    problems: list[str] = []
    run = _read_run(root / "run.json", problems) if hooks_were_there else {}
    frames = {table: _read_table(root / "telemetry", table, problems) for table in TABLES}
    problems.extend(_read_gaps(root / "telemetry"))
    if foreign.routing and frames["expert_load"].is_empty():
        routed = read_routing_traces(foreign.routing, root, problems)
        frames["expert_load"] = routed.sort(_ORDER["expert_load"], maintain_order=True)
    library = read_inspector(foreign.inspector, root, problems)
    return Telemetry(run, **frames, library=library, problems=problems)


def _read_run(path: Path, problems: list[str]) -> Mapping[str, Any]:
    if not path.is_file():
        problems.append("run.json is missing: the run's configuration and provenance are unknown")
        return {}
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        problems.append(f"run.json cannot be read: {error}")
        return {}
    if not isinstance(run, dict):
        problems.append(f"run.json holds {type(run).__name__}, not an object")
        return {}
    return run


def _read_table(telemetry: Path, table: str, problems: list[str]) -> pl.DataFrame:
    frames = [empty_table(table)]
    for parts in _parts_by_rank(telemetry / table).values():
        frames.extend(_read_parts(table, parts, problems))
    return pl.concat(frames, how="vertical").sort(_ORDER[table], maintain_order=True)


def _parts_by_rank(folder: Path) -> dict[str, list[Path]]:
    """The parts of every rank in the order in which they were written."""
    parts: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("rank*-*.parquet")):
        parts.setdefault(path.stem.rpartition("-")[0], []).append(path)
    return parts


def _read_parts(table: str, parts: list[Path], problems: list[str]) -> Iterator[pl.DataFrame]:
    """One rank's parts, last first. Steps that a later part repeats were trained again: its rows hold."""
    first_later_step: int | None = None
    for path in reversed(parts):
        try:
            frame = _conform(pl.read_parquet(path), table, path, problems)
        except (OSError, ValueError, pl.exceptions.PolarsError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            problems.append(f"telemetry/{table}/{path.name} cannot be read: {reason}")
            continue
        if "step" in frame.columns:
            if first_later_step is not None:
                frame = frame.filter(pl.col("step") < first_later_step)
            steps = [step for step in (first_later_step, frame["step"].min()) if isinstance(step, int)]
            first_later_step = min(steps, default=None)
        yield frame


def _conform(frame: pl.DataFrame, table: str, path: Path, problems: list[str]) -> pl.DataFrame:
    """Columns of the schema in its order: other versions' extra columns dropped, missing ones null and said."""
    if is_packed(frame, table):
        frame = unpack_part(frame, table)
    absent = [column for column in TABLES[table] if column not in frame.columns]
    if absent:
        problems.append(f"telemetry/{table}/{path.name} lacks the columns {', '.join(absent)}")
    complete = frame.with_columns(pl.lit(None).alias(column) for column in absent)
    return complete.select(pl.col(column).cast(dtype) for column, dtype in TABLES[table].items())


def _read_gaps(telemetry: Path) -> list[str]:
    lost = []
    for path in sorted(telemetry.glob("rank*-gaps.json")):
        try:
            for gap in json.loads(path.read_text(encoding="utf-8")):
                rank = path.name.removesuffix("-gaps.json")
                times = f" ({gap['count']} times)" if gap["count"] > 1 else ""
                lost.append(f"{rank}: {gap['what']} was lost{times}: {gap['reason']}")
        except (OSError, ValueError, KeyError, TypeError) as error:
            lost.append(f"telemetry/{path.name} cannot be read: {error}")
    return lost
