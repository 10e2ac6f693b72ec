"""One input file -> its entry in the store."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from moescope.trace.crew import Crew
from moescope.trace.decimals import as_int
from moescope.trace.identity import identify
from moescope.trace.model import DEVICE_CATEGORIES
from moescope.trace.patterns import Patterns
from moescope.trace.scan import Scan, scan
from moescope.trace.store import Entry
from moescope.trace.tables import Tables, finish, note_launches


@dataclass(frozen=True, slots=True)
class Job:
    """A file to read and where its tables go."""

    path: Path
    relative: str
    entry: Entry


def ingest(job: Job, patterns: Patterns, crew: Crew | None = None) -> dict[str, Any]:
    """Read the file, write its entry and return the metadata: ``{"is_trace": False, ...}`` when it holds no events."""
    found = scan(job.path, crew)
    if found is None:
        metadata: dict[str, Any] = {"is_trace": False, "file": job.relative}
        job.entry.save(None, metadata)
        return metadata
    tables = finish(found, as_int(found.info.get("baseTimeNanoseconds")) or 0, patterns)
    metadata = _describe(job, found, tables)
    job.entry.save(tables, metadata)
    return metadata


def _describe(job: Job, found: Scan, tables: Tables) -> dict[str, Any]:
    events = tables.events
    on_device = events.filter(events["category"].is_in(DEVICE_CATEGORIES))
    by_use = on_device["device"].drop_nulls().value_counts(sort=True)["device"].to_list()
    who = identify(found.info, by_use)
    note_launches(events, found.faults)
    if not events.height:
        found.faults.note("no-events")
    timed = events.filter(events["category"] != "other")
    timed = timed if timed.height else events
    return {
        "is_trace": True,
        "file": job.relative,
        "num_bytes": found.num_bytes,
        **asdict(who),
        "start_ns": timed["start_ns"].min() or 0,
        "end_ns": (timed["start_ns"] + timed["dur_ns"]).max() or 0,
        "num_events": events.height,
        "num_device_events": on_device.height,
        "num_recorded": found.num_recorded,
        "info": found.info,
        "labels": found.labels,
        "remarks": found.faults.remarks,
        "problems": [asdict(problem) for problem in found.faults.problems(job.relative, who.rank)],
    }
