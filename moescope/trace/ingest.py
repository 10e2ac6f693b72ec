"""One input file -> its entry in the store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from moescope.trace.crew import Crew
from moescope.trace.decimals import as_base_ns
from moescope.trace.identity import identify, rank_beside, usable
from moescope.trace.interrupts import check
from moescope.trace.merged import MergedError, ranks_of_processes
from moescope.trace.model import DEVICE_CATEGORIES
from moescope.trace.patterns import Patterns
from moescope.trace.records import NO_NUMBER
from moescope.trace.scan import Scan, scan
from moescope.trace.store import Entry
from moescope.trace.tables import Columns, Tables, finish, note_launches


@dataclass(frozen=True, slots=True)
class Job:
    """A file to read and where its tables go."""

    path: Path
    relative: str
    entry: Entry


def ingest(job: Job, patterns: Patterns, crew: Crew | None = None) -> dict[str, Any]:
    """Read the file, write its entry and return the metadata.

    ``{"is_trace": False, ...}`` when it holds no events, with ``refused`` when it holds several ranks that cannot be
    told apart; those that can are ``parts``, each with an entry of its own.
    """
    metadata = {"is_trace": False, "file": job.relative} | _contents(job, patterns, crew)
    job.entry.save_metadata(metadata)
    return metadata


def _contents(job: Job, patterns: Patterns, crew: Crew | None) -> dict[str, Any]:
    """What the file's metadata says of its contents; stores the tables."""
    found = scan(job.path, crew)
    if found is None:
        return {}
    check()
    base = as_base_ns(found.info.get("baseTimeNanoseconds", 0))
    if base is None:
        found.faults.note("bad-base", detail=str(found.info["baseTimeNanoseconds"])[:40])
    found.info = usable(found.info, base or 0, found.faults)
    tables = finish(found, base or 0, patterns)
    check()
    try:
        owners = ranks_of_processes(tables, found.labels)
    except MergedError as error:
        return {"refused": str(error)}
    if owners is None:
        return _store(job, job.entry, found, tables)
    return {"parts": [_part(job, found, tables, owners, rank) for rank in sorted(set(owners.values()))]}


def _store(job: Job, entry: Entry, found: Scan, tables: Tables) -> dict[str, Any]:
    """Write the tables; meanwhile describe them."""
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(entry.save_table, "events", tables.events)
        metadata = _describe(job, found, tables.columns)
        entry.save_table("comm", tables.comm)
        entry.save_table("memory", tables.memory)
        written.result()
    return metadata | {"tables": entry.table_states()}


def _part(job: Job, found: Scan, tables: Tables, owners: dict[int, int], rank: int) -> dict[str, Any]:
    """Store what belongs to one rank of a merged file."""
    mine = tables.events["pid"].is_in([process for process, owner in owners.items() if owner == rank]).fill_null(False)
    events = tables.events.filter(mine)
    comm = tables.comm.filter(pl.col("index").is_in(events["index"].implode()))
    columns = tables.columns.only(mine.to_numpy())
    # Memory events do not tell their process.
    part = replace(tables, events=events, comm=comm, memory=tables.memory.clear(), columns=columns)
    return _store(job, job.entry.part(rank), found, part) | {"rank": rank}


def _describe(job: Job, found: Scan, events: Columns) -> dict[str, Any]:
    faults = found.faults.copy()
    on_device = events.are_in(*DEVICE_CATEGORIES)
    devices, counts = np.unique(events.device[on_device & (events.device > NO_NUMBER)], return_counts=True)
    who = identify(found.info, devices[np.argsort(-counts, kind="stable")].tolist(), faults)
    who = replace(who, rank=rank_beside(job.path)) if who.rank is None else who
    note_launches(events, faults)
    if not len(events.index):
        faults.note("no-events")
    start, end = _span(events)
    return {
        "is_trace": True,
        "file": job.relative,
        "num_bytes": found.num_bytes,
        **asdict(who),
        "start_ns": start,
        "end_ns": end,
        "num_events": len(events.index),
        "num_device_events": int(on_device.sum()),
        "num_recorded": found.num_recorded,
        "info": found.info,
        "labels": found.labels,
        "remarks": faults.remarks,
        "problems": [asdict(problem) for problem in faults.problems(job.relative, who.rank)],
    }


def _span(events: Columns) -> tuple[int, int]:
    """When the first event begins and the last one ends, of those of a known category if there are any."""
    start, end = events.start_ns, events.start_ns + events.dur_ns
    is_other = events.are_in("other")
    if not is_other.all():
        start, end = start[~is_other], end[~is_other]
    return (int(start.min()), int(end.max())) if len(start) else (0, 0)
