"""One input file -> its entry in the store."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from isal import isal_zlib
from isal.igzip_lib import IsalError

from moescope.trace.decimals import as_int
from moescope.trace.document import Document, parse
from moescope.trace.identity import Identity, identify
from moescope.trace.model import DEVICE_CATEGORIES, Problem
from moescope.trace.patterns import Patterns
from moescope.trace.rows import Raw, tabulate
from moescope.trace.store import Entry
from moescope.trace.tables import Tables, early_kernels, finish

_GZIP = b"\x1f\x8b"
_INFLATE_ERRORS: tuple[type[Exception], ...] = (IsalError, EOFError)  # type: ignore[assignment]  # isal's stub
_EFFECTS = {
    "truncated": "what came after is missing: times, waits and sums cover the part before",
    "gzip-damaged": "what came after is missing: times, waits and sums cover the part before",
    "dropped-events": "their time and their communication are missing from every sum",
    "not-an-event": "their time and their communication are missing from every sum",
    "no-start": "their time and their communication are missing from every sum",
    "bad-duration": "counted as events of zero length, so their time is missing from every sum",
    "repaired": "names of the repaired events may differ from what was recorded",
    "bad-utf8": "the bad bytes read as U+FFFD",
    "extra-comma": "none",
}


@dataclass(frozen=True, slots=True)
class Job:
    """A file to read and where its tables go."""

    path: Path
    relative: str
    entry: Entry


def ingest(job: Job, patterns: Patterns) -> dict[str, Any]:
    """Read the file, write its entry and return the metadata: ``{"is_trace": False, ...}`` when it holds no events."""
    data, gzip_fault = _read(job.path)
    document = parse(data) if data else None
    size = len(data)
    del data
    if document is None:
        metadata: dict[str, Any] = {"is_trace": False, "file": job.relative, "bytes": size, "gzip_fault": gzip_fault}
        job.entry.save(None, metadata)
        return metadata
    if gzip_fault:
        document.note(
            "gzip-damaged", f"the compressed stream is damaged ({gzip_fault})", f"byte {size}", loses_data=True
        )
    raw = tabulate(document)
    tables = finish(raw, _base_ns(document.info), patterns)
    metadata = _describe(job, document, raw, tables)
    job.entry.save(tables, metadata)
    return metadata


def _base_ns(info: dict[str, Any]) -> int:
    return as_int(info.get("baseTimeNanoseconds")) or 0


def _read(path: Path) -> tuple[bytes, str]:
    """The file's bytes, inflated, and what is wrong with the compressed stream."""
    data = path.read_bytes()
    if not data.startswith(_GZIP):
        return data, ""
    out = bytearray()
    while data:
        inflater = isal_zlib.decompressobj(wbits=31)
        try:
            out += inflater.decompress(data)
        except _INFLATE_ERRORS:
            return bytes(out) + _inflate_slowly(data), "corrupt"
        if not inflater.eof:
            return bytes(out), "truncated"
        data = inflater.unused_data.lstrip(b"\0")
    return bytes(out), ""


def _inflate_slowly(data: bytes) -> bytes:
    """What can be inflated of one corrupt gzip member."""
    inflater, out = isal_zlib.decompressobj(wbits=31), bytearray()
    for start in range(0, len(data), 1024):
        try:
            out += inflater.decompress(data[start : start + 1024])
        except _INFLATE_ERRORS:
            break
    return bytes(out)


def _describe(job: Job, document: Document, raw: Raw, tables: Tables) -> dict[str, Any]:
    events = tables.events
    on_device = events.filter(events["category"].is_in(DEVICE_CATEGORIES))
    by_use = on_device["device"].drop_nulls().value_counts(sort=True)["device"].to_list()
    who = identify(document.info, by_use)
    early, first = early_kernels(events)
    if early:
        document.note("early-kernels", "device events start before the call that launched them", f"event {first}",
                      loses_data=False, count=early)  # fmt: skip
    timed = events.filter(events["category"] != "other")
    timed = timed if timed.height else events
    ends = timed["start_ns"] + timed["dur_ns"]
    return {
        "is_trace": True,
        "file": job.relative,
        **_identity_json(who),
        "start_ns": timed["start_ns"].min() or 0,
        "end_ns": ends.max() or 0,
        "num_events": events.height,
        "num_device_events": on_device.height,
        "num_recorded": raw.num_recorded,
        "info": document.info,
        "labels": raw.labels,
        "problems": [asdict(problem) for problem in problems_of(document, job.relative, who.rank)],
    }


def _identity_json(who: Identity) -> dict[str, Any]:
    return asdict(who)


def problems_of(document: Document, relative: str, rank: int | None) -> list[Problem]:
    """The faults of one file as problems, each with its effect on the answer."""
    return [
        Problem(
            file=relative,
            rank=rank,
            what=f"{fault.count:,} x {fault.what}" if fault.count > 1 else fault.what,
            effect=_EFFECTS.get(fault.code, "recorded times are kept as they are"),
            count=fault.count,
            where=fault.where,
            code=fault.code,
            loses_data=fault.loses_data,
        )
        for fault in document.faults.values()
    ]


def looks_like_trace(name: str) -> bool:
    """Whether a file's name promises a trace, so that an unreadable one is worth a word."""
    return re.search(r"trace|rank|\.pt\.", name, re.IGNORECASE) is not None
