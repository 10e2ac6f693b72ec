"""Reads run.json, the Parquet parts of the hooks and recordings of other tools, as far as they can be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
from moescope_hooks.schema import TABLES, empty_table

from moescope.intake import MOST_RANKS, read_json, valid_text, why_not_readable
from moescope.telemetry.blocks import is_packed, unpack_part
from moescope.telemetry.foreign import find_foreign
from moescope.telemetry.inspector import LIBRARY_COLLECTIVE, read_inspector
from moescope.telemetry.megatron import read_routing_traces

_RUN_FIELDS: dict[str, type] = {
    "basis": str,
    "name": str,
    "controls": list,
    "devices": list,
    "hosts": list,
    "model": dict,
    "parallel": dict,
    "train": dict,
    "data": dict,
    "result": dict,
}
"""Fields of run.json that something is computed from or looked up in."""

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
        run, odd = read_json(path.read_bytes())
    except (OSError, ValueError) as error:
        problems.append(f"run.json cannot be read: {error}")
        return {}
    if not isinstance(run, dict):
        problems.append(f"run.json holds {type(run).__name__}, not an object")
        return {}
    if str(odd):
        problems.append(f"run.json holds {odd}: they were left out, bad characters replaced")
    return _as_expected(run, problems)


def _as_expected(run: Mapping[str, Any], problems: list[str]) -> Mapping[str, Any]:
    """run.json without the fields that are of another type than they should be."""
    odd = [name for name, kind in _RUN_FIELDS.items() if name in run and not isinstance(run[name], kind)]
    problems.extend(f"run.json: {name} is of type {type(run[name]).__name__}; it was left out" for name in odd)
    kept = {name: value for name, value in run.items() if name not in odd}
    parallel = kept.get("parallel", {})
    if bad := [name for name, is_valid in _LAYOUT.items() if parallel.get(name) and not is_valid(parallel)]:
        problems.append(f"run.json: parallel.{' and parallel.'.join(bad)} cannot be; what needs it is missing")
        kept["parallel"] = {name: value for name, value in parallel.items() if name not in bad}
    return kept


def _are_groups(parallel: Mapping[str, Any]) -> bool:
    """Whether the groups of ranks are lists of one length, no rank in two places."""
    groups = parallel["ep_groups"]
    if not isinstance(groups, list) or not all(isinstance(group, list) and group for group in groups):
        return False
    ranks = [rank for group in groups for rank in group]
    are_ranks = all(isinstance(rank, int) and 0 <= rank <= MOST_RANKS for rank in ranks)
    return are_ranks and len(set(ranks)) == len(ranks) and len(set(map(len, groups))) == 1


def _are_places(parallel: Mapping[str, Any]) -> bool:
    """Whether every expert's place is a member of its group."""
    placement, groups = parallel["expert_placement"], parallel.get("ep_groups")
    lists = list(placement.values()) if isinstance(placement, dict) else [placement]
    size = len(groups[0]) if groups and _are_groups(parallel) else 0
    return all(isinstance(one, list) and all(isinstance(at, int) and 0 <= at < size for at in one) for one in lists)


_LAYOUT = {"ep_groups": _are_groups, "expert_placement": _are_places}
"""Fields of run.json's ``parallel`` that tokens are counted by -> what holds for them."""


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
            if why := why_not_readable(path):
                raise OSError(why)
            frame = _conform(pl.read_parquet(path.read_bytes()), table, path, problems)
        except (OSError, ValueError, pl.exceptions.PolarsError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            problems.append(f"telemetry/{table}/{valid_text(path.name)} cannot be read: {reason}")
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
        problems.append(f"telemetry/{table}/{valid_text(path.name)} lacks the columns {', '.join(absent)}")
    complete = frame.with_columns(pl.lit(None).alias(column) for column in absent)
    return complete.select(pl.col(column).cast(dtype) for column, dtype in TABLES[table].items())


def _read_gaps(telemetry: Path) -> list[str]:
    lost = []
    for path in sorted(telemetry.glob("rank*-gaps.json")):
        if why := why_not_readable(path):
            lost.append(f"telemetry/{valid_text(path.name)} cannot be read: {why}")
            continue
        try:
            for gap in read_json(path.read_bytes())[0]:
                rank = path.name.removesuffix("-gaps.json")
                times = f" ({gap['count']} times)" if gap["count"] > 1 else ""
                lost.append(f"{rank}: {gap['what']} was lost{times}: {gap['reason']}")
        except (OSError, ValueError, KeyError, TypeError) as error:
            lost.append(f"telemetry/{path.name} cannot be read: {error}")
    return lost
