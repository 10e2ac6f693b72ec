"""Reading many files: in this process, with helper threads or processes, or on a Dask cluster."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from moescope.errors import MoescopeError
from moescope.trace import compiled
from moescope.trace.crew import Crew, Threads
from moescope.trace.ingest import Job, ingest
from moescope.trace.interrupts import check, held
from moescope.trace.patterns import Patterns
from moescope.trace.processes import Processes
from moescope.trace.store import StoreError, remove_partials

Progress = Callable[[int, int, str], None]
"""``progress(done, total, what)``, called in the calling thread after each file."""

Outcomes = Generator[tuple[int, dict[str, Any]], None, None]
"""(place, metadata) of each job."""

_SMALL_BYTES = 24 << 20
"""Content that one process reads sooner than others start."""
_WHOLE_BYTES = 48 << 20
"""Content up to which a worker reads a file alone: as many files' tables are in memory as there are workers."""
_SHARING = 4
"""Workers that one can keep busy with blocks while it joins their columns, and that the interpreter's lock does not
hold up where blocks are decoded by compiled code; more are processes, which read any file alone if there are enough."""
_GZIP_RATIO = 12


def default_workers() -> int:
    """Workers to read with: one for each processor this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def read_jobs(
    jobs: Sequence[Job], patterns: Patterns, workers: int | None, scheduler: str | None, progress: Progress | None
) -> list[dict[str, Any]]:
    """Metadata of each job's file, in order; of one that cannot be opened ``{"is_trace": False, "error": reason}``."""
    found = [_stored(job) for job in jobs]
    missing = [place for place, metadata in enumerate(found) if metadata is None]
    done = len(jobs) - len(missing)
    todo = [jobs[place] for place in missing]
    results = _on_cluster(todo, patterns, scheduler) if scheduler and todo else _here(todo, patterns, workers)
    with closing(results):  # at once, also where a traceback keeps it alive
        for place, metadata in results:
            found[missing[place]] = metadata
            done += 1
            if progress is not None:
                progress(done, len(jobs), jobs[missing[place]].relative)
    return [metadata for metadata in found if metadata is not None]


def _stored(job: Job) -> dict[str, Any] | None:
    metadata = job.entry.load()
    return metadata if metadata is not None and metadata["file"] == job.relative else None


def read_job(job: Job, patterns: Patterns, crew: Crew | None = None) -> dict[str, Any]:
    """:func:`ingest`, with a file that cannot be opened as a result of its own."""
    try:
        return ingest(job, patterns, crew)
    except StoreError:
        raise
    except OSError as error:
        return {"is_trace": False, "file": job.relative, "error": error.strerror or str(error)}


def _here(jobs: list[Job], patterns: Patterns, workers: int | None) -> Outcomes:
    """(place, metadata) of each job: small files each by one worker, of others the blocks by all."""
    if not jobs:
        return
    count = max(1, workers if workers is not None else default_workers())
    sizes = list(map(_content_bytes, jobs))
    threads = compiled.is_available() and count <= _SHARING
    if not threads and sum(sizes) < _SMALL_BYTES:
        count = 1
    limit = 0 if count == 1 else _WHOLE_BYTES if count <= _SHARING else max(sizes)
    whole = [place for place, size in enumerate(sizes) if size <= limit]
    whole = whole if len(whole) >= count else []
    crew = (Threads if threads else Processes)(count - 1)
    with held(), _no_partials(jobs[0].entry.folder, crew), crew:
        results = crew.run(read_job, ((jobs[place], patterns) for place in whole), ahead=len(jobs))
        yield from ((place, metadata) for place, (_, metadata) in zip(whole, results, strict=True))
        for place in sorted(set(range(len(jobs))).difference(whole)):
            check()
            yield place, read_job(jobs[place], patterns, crew)


@contextmanager
def _no_partials(folder: Path, crew: Crew) -> Iterator[None]:
    """Remove in the end what this process or an ended one has half written."""
    try:
        yield
    finally:
        remove_partials(folder, crew.pids)


def _content_bytes(job: Job) -> int:
    """About how large the file is when inflated."""
    try:
        size = job.path.stat().st_size
    except OSError:
        return 0
    return size * (_GZIP_RATIO if job.path.suffix == ".gz" else 1)


def _on_cluster(jobs: list[Job], patterns: Patterns, scheduler: str) -> Outcomes:
    """As :func:`_here`, on the workers of a Dask scheduler, which must see the same files under the same paths."""
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError as error:
        raise MoescopeError(
            "reading on a cluster needs the package distributed",
            hint="pip install 'moescope[cluster]'",
            code="missing-extra",
        ) from error
    try:
        client = distributed.Client(scheduler, timeout="10s", set_as_default=False)
    except (OSError, ValueError) as error:
        raise MoescopeError(
            f"no Dask scheduler answers at {scheduler}: {error}",
            hint="start one with `dask scheduler` and pass the tcp:// address it prints",
            code="no-scheduler",
        ) from error
    with client:
        futures = {client.submit(read_job, job, patterns, pure=False): place for place, job in enumerate(jobs)}
        try:
            for future in distributed.as_completed(futures, loop=client.loop):
                place = futures[future]
                yield place, _seen_here(jobs[place], _answer(jobs[place], future))
        finally:
            client.cancel(list(futures))


def _answer(job: Job, future: Any) -> dict[str, Any]:
    """What a worker made of the file; whatever went wrong on the way is the cluster's."""
    try:
        return dict(future.result())
    except Exception as error:
        raise MoescopeError(
            f"the cluster could not read {job.relative}: {error}",
            hint="its workers need this version of moescope and memory for the largest file; their logs say more",
            code="cluster-failed",
        ) from error


def _seen_here(job: Job, metadata: dict[str, Any]) -> dict[str, Any]:
    if "error" not in metadata and job.entry.load() is None:
        raise MoescopeError(
            f"the cluster's workers wrote the store of {job.relative} where this machine does not see it",
            hint="put the traces and their folder .moescope on a file system that all workers share",
            code="store-not-shared",
        )
    return metadata
