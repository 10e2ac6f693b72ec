"""A folder of traces: which files it holds, and what was read of them."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from moescope.errors import InputUnreadableError, MoescopeError
from moescope.intake import Listing, list_files, valid_text, why_not_readable
from moescope.trace.defaults import defaults
from moescope.trace.identity import looks_like_trace
from moescope.trace.ingest import Job
from moescope.trace.model import Problem
from moescope.trace.patterns import Patterns, load_patterns
from moescope.trace.ranktrace import RankTrace
from moescope.trace.reading import Progress, read_jobs
from moescope.trace.store import StoreError, entry_for, file_key, outside_folder, store_folder
from moescope.trace.windows import Stored, number_windows, with_ranks

_SUFFIXES = (".json", ".json.gz", ".trace", ".trace.gz")


@dataclass(slots=True)
class TraceDirectory:
    """All windows of all ranks under one path."""

    path: Path
    ranks: list[RankTrace]
    """Sorted by (rank, window)."""
    problems: list[Problem]
    """Everything that could not be taken as it stands, of the folder and of every rank."""
    notes: list[str]
    """What is worth knowing but takes nothing from the answer, such as where the store lies."""


def open_directory(
    path: str | os.PathLike[str],
    rank_regex: str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    *,
    scheduler: str | None = None,
    patterns: str | os.PathLike[str] | None = None,
) -> TraceDirectory:
    """Read every trace under ``path`` (a folder or one file), or take it from the store where nothing changed.

    ``rank_regex``: one group that finds the rank in a file's path, for names that the built-in rules do not know;
    a rank that the file's content states comes first. ``workers``: processes to read with, by default one for each
    processor; ``scheduler``: address of a Dask scheduler to read on instead. ``progress(done, total, what)`` is
    called after each file. ``patterns``: a table of the form of ``patterns.toml`` that is tried before it. Where the
    last two are None, :func:`moescope.trace.reading_defaults` may have set them.
    Raises :class:`InputUnreadableError` when nothing useful could be read.
    """
    root = Path(path)
    table = _table(patterns)
    regex = _compile(rank_regex)
    listing = _candidates(root)
    base = root if root.is_dir() else root.parent
    folder, inside = store_folder(base)
    problems = [_unreadable(_relative(path, base), reason) for path, reason in listing.unreadable]
    jobs = list(_jobs(listing.files, base, folder, table, problems))
    how = (table, workers, scheduler or defaults().scheduler, progress)
    try:
        found = read_jobs(jobs, *how)
    except StoreError:
        if not inside:
            raise
        folder, inside = outside_folder(base), False  # a full disk, for example
        jobs = [replace(job, entry=replace(job.entry, folder=folder)) for job in jobs]
        found = read_jobs(jobs, *how)
    notes = [] if inside else [f"{valid_text(str(base))} cannot be written; the store is in {folder}"]
    for metadata in found:
        _note(metadata, notes, problems)
    traces = [stored for metadata, job in zip(found, jobs, strict=True) for stored in _stored(metadata, job)]
    if not traces:
        raise _nothing_read(root, problems, notes)
    ranks = [replace(trace, patterns=table) for trace in number_windows(with_ranks(traces, regex, problems), problems)]
    notes += _other_runs(ranks, problems)
    problems.extend(problem for trace in ranks for problem in trace.problems)
    return TraceDirectory(root, ranks, problems, notes)


def fingerprint(path: str | os.PathLike[str], patterns: str | os.PathLike[str] | None = None) -> str:
    """Hash over the identity of every candidate file under ``path``, the name patterns and the store's schema.

    Cheap: reads at most 128 KiB per file (see :func:`moescope.trace.store.file_key`).
    """
    root = Path(path)
    text = _table(patterns).text
    base = root if root.is_dir() else root.parent
    digest = hashlib.blake2b(digest_size=16)
    listing = _candidates(root)
    for file in listing.files:
        digest.update(f"{file.relative_to(base).as_posix()} {_state(file, text)}\n".encode("utf-8", "surrogateescape"))
    for place, reason in listing.unreadable:
        digest.update(f"{place} {reason}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _state(file: Path, patterns_text: str) -> str:
    """The file's identity, or why it cannot be read."""
    try:
        return file_key(file, patterns_text)
    except OSError as error:
        return error.strerror or str(error)


def _table(patterns: str | os.PathLike[str] | None) -> Patterns:
    return load_patterns(Path(patterns) if patterns is not None else defaults().patterns)


def _compile(rank_regex: str | None) -> re.Pattern[str] | None:
    if rank_regex is None:
        return None
    hint = r"for example 'node\d+_gpu(\d+)'"
    try:
        regex = re.compile(rank_regex)
    except re.error as error:
        message = f"--rank-regex: {rank_regex!r} is not a regular expression: {error}"
        raise MoescopeError(message, hint=hint, code="bad-regex") from error
    if regex.groups < 1:
        raise MoescopeError(f"--rank-regex: {rank_regex!r} has no group", hint=hint, code="bad-regex")
    return regex


def _candidates(root: Path) -> Listing:
    """The files that may be traces, and what only looks like one."""
    if not root.exists():
        raise InputUnreadableError(f"{root} does not exist", hint="pass a folder of Kineto traces", code="no-such-path")
    if not root.is_dir():
        if reason := why_not_readable(root):
            raise InputUnreadableError(f"{root}: {reason}", hint="pass a folder of Kineto traces", code="no-file")
        return Listing([root])
    listing = list_files(root, _SUFFIXES)
    if not listing.files and not listing.unreadable:
        raise InputUnreadableError(
            f"{root} holds no .json or .json.gz file",
            hint="pass the folder that torch.profiler wrote its traces to (moescope train --profile makes one)",
            code="empty-folder",
        )
    return listing


def _relative(file: Path, base: Path) -> str:
    """The file's name within the folder, as text that can be shown and stored."""
    return valid_text(file.relative_to(base).as_posix())


def _jobs(files: list[Path], base: Path, folder: Path, patterns: Patterns, problems: list[Problem]) -> Iterator[Job]:
    for file in files:
        relative = _relative(file, base)
        try:
            key = file_key(file, patterns.text)
        except OSError as error:
            problems.append(_unreadable(relative, error.strerror or str(error)))
        else:
            yield Job(file, relative, entry_for(folder, file.relative_to(base).as_posix(), key))


def _unreadable(name: str, reason: str) -> Problem:
    return Problem(name, None, f"cannot be read ({reason})", "its rank is missing", code="unreadable")


def _note(metadata: dict[str, Any], notes: list[str], problems: list[Problem]) -> None:
    """Say of one file what is not said of its rank."""
    name = metadata["file"]
    if "error" in metadata:
        problems.append(_unreadable(name, metadata["error"]))
    elif "refused" in metadata:
        problems.append(Problem(name, None, metadata["refused"], "left out", code="merged-file"))
    elif "parts" in metadata:
        ranks = ", ".join(str(part["rank"]) for part in metadata["parts"])
        notes.append(f"{name} holds the merged traces of ranks {ranks}; it was split by process")
    elif metadata["is_trace"]:
        notes.extend(f"{name}: {remark}" for remark in metadata["remarks"])
    elif looks_like_trace(name):
        problems.append(Problem(name, None, "no trace events in it", "skipped", code="not-a-trace"))
    else:
        notes.append(f"{name} is not a trace; skipped")


def _stored(metadata: dict[str, Any], job: Job) -> list[Stored]:
    """The traces of one file: one, none, or one for each rank that was merged into it."""
    if "parts" in metadata:
        return [(part, job.entry.part(part["rank"])) for part in metadata["parts"]]
    return [(metadata, job.entry)] if metadata["is_trace"] else []


def _other_runs(ranks: list[RankTrace], problems: list[Problem]) -> list[str]:
    """A word where whole folders were left out since others hold the same ranks at the same time."""
    left_out = {PurePosixPath(problem.file).parent for problem in problems if problem.code == "duplicate-rank"}
    runs = sorted(map(str, left_out - {PurePosixPath(trace.file).parent for trace in ranks}))
    if not runs:
        return []
    shown = ", ".join(runs[:3]) + (f" and {len(runs) - 3} more" if len(runs) > 3 else "")
    return [
        f"other runs seem to lie in {shown}: their ranks and times are those of the traces kept; open one at a time"
    ]


def _nothing_read(root: Path, problems: list[Problem], notes: list[str]) -> InputUnreadableError:
    details = "; ".join([*map(str, problems), *notes][:3])
    return InputUnreadableError(
        f"{root}: none of the files is a Kineto trace ({details})",
        hint="a trace is what torch.profiler's export_chrome_trace or tensorboard_trace_handler writes",
        code="no-trace",
    )
