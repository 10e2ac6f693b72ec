"""The helper of the zoo: tiny files in, one line of text out."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from moescope.trace import TraceDirectory, open_directory
from moescope.trace.raw import RawEvents
from moescope.trace.records import NO_NUMBER


def event(category: str | None = "kernel", ts: str = "1", dur: str = "2", **more: object) -> str:
    """The JSON text of a complete event; ``ts`` and ``dur`` are JSON texts, a None drops the field."""
    fields: dict[str, object] = {"ph": "X", "cat": category, "name": "k", "pid": 0, "tid": 7} | more
    text = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in fields.items() if value is not None)
    return f'{{{text}, "ts": {ts}, "dur": {dur}}}'


def process(pid: object, name: str, what: str = "process_name") -> str:
    """The JSON text of a metadata event that names a process."""
    args = {"name" if what == "process_name" else "labels": name}
    return json.dumps({"ph": "M", "name": what, "pid": pid, "tid": 0, "ts": 0, "args": args})


def trace(*events: str, rank: object = 0, **info: object) -> str:
    """The JSON text of a trace with these events; ``rank`` None leaves distributedInfo out."""
    if rank is not None:
        info = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 4}} | info
    head = "".join(f"{json.dumps(key)}: {json.dumps(value)}, " for key, value in info.items())
    return f'{{"schemaVersion": 1, {head}"traceEvents": [\n{", ".join(events)}\n]}}'


def open_files(folder: Path, files: Mapping[str, str | bytes], **options: object) -> TraceDirectory:
    """Write ``files`` under ``folder`` (names that end in .gz compressed) and open it."""
    for name, content in files.items():
        data = content.encode() if isinstance(content, str) else content
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") and not data.startswith(b"\x1f\x8b") else data)
    return open_directory(folder, workers=1, **options)  # type: ignore[arg-type]


def frame(events: RawEvents) -> pl.DataFrame:
    """All columns as the file has them, with null where there is no number or text."""
    columns = {"index": pl.Series(events.index)}
    for name, values in events.numbers.items():
        numbers = [None if number <= NO_NUMBER else number for number in values.tolist()]
        columns[name] = pl.Series(numbers, dtype=pl.Int64)
    return pl.DataFrame(columns | {name: column.series() for name, column in events.words.items()})


def told(directory: TraceDirectory) -> str:
    """What was read: ``rank.window category/kind start+duration ns, ... ! problem codes``; of kernels the kind."""
    parts = []
    for one in directory.ranks:
        rows = one.events(["category", "kind", "start_ns", "dur_ns"]).iter_rows()
        events = ", ".join(f"{_label(category, kind)} {start}+{duration}" for category, kind, start, duration in rows)
        parts.append(f"{one.rank}.{one.window} {events}".rstrip())
    codes = sorted({problem.code for problem in directory.problems})
    return " | ".join(parts) + (f" ! {' '.join(codes)}" if codes else "")


def _label(category: str, kind: str | None) -> str:
    if category == "kernel":
        return str(kind)
    return category if kind in (None, category) else f"{category}/{kind}"
