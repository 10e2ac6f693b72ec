"""A folder of traces: which files, whose ranks, which windows."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl

from moescope.errors import InputUnreadableError, MoescopeError
from moescope.trace.identity import looks_like_trace, rank_from_name, worker_of
from moescope.trace.ingest import Job, ingest
from moescope.trace.model import EVENT_SCHEMA, CategoryType, Problem, ProcessGroup
from moescope.trace.patterns import Patterns, load_patterns
from moescope.trace.store import Entry, entry_for, file_key, store_folder

Progress = Callable[[int, int, str], None]
_SUFFIXES = (".json", ".json.gz", ".trace", ".trace.gz")


@dataclass(slots=True)
class RankTrace:
    """One profiled window of one rank; its tables are read from the store when asked for."""

    rank: int
    window: int
    file: str
    host: str | None
    device: str
    world_size: int | None
    groups: dict[str, ProcessGroup]
    start_ns: int
    end_ns: int
    num_events: int
    num_device_events: int
    problems: list[Problem]
    info: dict[str, Any]
    labels: dict[str, str]
    """Names and labels of the processes in the trace, by ``"process_name {pid}"`` and ``"process_labels {pid}"``."""
    entry: Entry = field(repr=False)

    def events(self, columns: Sequence[str] | None = None, categories: Iterable[str] | None = None) -> pl.DataFrame:
        """Complete events, sorted by ``start_ns``; only ``columns`` and only rows of ``categories`` where given."""
        frame = pl.scan_parquet(self.entry.table("events"))
        if categories is not None:
            frame = frame.filter(pl.col("category").is_in(pl.Series(list(categories), dtype=CategoryType).implode()))
        return frame.select(list(columns) if columns is not None else list(EVENT_SCHEMA)).collect()

    def comm_args(self) -> pl.DataFrame:
        """Communication arguments by event ``index``."""
        return pl.read_parquet(self.entry.table("comm"))

    def memory(self) -> pl.DataFrame:
        """Allocations and frees, sorted by ``ts_ns``."""
        return pl.read_parquet(self.entry.table("memory"))


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
    workers: int | None = None,  # noqa: ARG001
    progress: Progress | None = None,
    *,
    patterns: str | os.PathLike[str] | None = None,
) -> TraceDirectory:
    """Read every trace under ``path`` (a folder or one file), or take it from the store where nothing changed.

    ``rank_regex``: one group that finds the rank in a file's path, for names that the built-in rules do not know;
    a rank that the file's content states comes first. ``progress(done, total, what)`` is called per file.
    ``patterns``: a table of the form of ``patterns.toml`` that is tried before it.
    Raises :class:`InputUnreadableError` when nothing useful could be read.
    """
    root = Path(path)
    table = load_patterns(Path(patterns) if patterns is not None else None)
    regex = _compile(rank_regex)
    files = _candidates(root)
    base = root if root.is_dir() else root.parent
    folder, inside = store_folder(base)
    notes = [] if inside else [f"{base} cannot be written; the store is in {folder}"]
    problems: list[Problem] = []
    metadata = _read_all(files, (base, folder), table, progress, problems)
    traces = [(m, e) for m, e in metadata if m["is_trace"]]
    for m, _ in metadata:
        if not m["is_trace"]:
            _note_other(m, notes, problems)
        notes.extend(f"{m['file']}: {remark}" for remark in m.get("remarks", []))
    if not traces:
        raise _nothing_read(root, problems, notes)
    ranks = _windows(_with_ranks(traces, regex, problems), problems)
    problems.extend(p for trace in ranks for p in trace.problems)
    return TraceDirectory(root, ranks, problems, notes)


def fingerprint(path: str | os.PathLike[str], patterns: str | os.PathLike[str] | None = None) -> str:
    """Hash over the identity of every candidate file under ``path``, the name patterns and the store's schema.

    Cheap: reads at most 128 KiB per file (see :func:`moescope.trace.store.file_key`).
    """
    root = Path(path)
    text = load_patterns(Path(patterns) if patterns is not None else None).text
    base = root if root.is_dir() else root.parent
    digest = hashlib.blake2b(digest_size=16)
    for file in _candidates(root):
        digest.update(f"{_relative(file, base)} {file_key(file, text)}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _compile(rank_regex: str | None) -> re.Pattern[str] | None:
    if rank_regex is None:
        return None
    try:
        regex = re.compile(rank_regex)
    except re.error as error:
        raise MoescopeError(
            f"--rank-regex: {rank_regex!r} is not a regular expression: {error}", code="bad-regex"
        ) from error
    if regex.groups < 1:
        raise MoescopeError(
            f"--rank-regex: {rank_regex!r} has no group", hint=r"for example 'node\d+_gpu(\d+)'", code="bad-regex"
        )
    return regex


def _candidates(root: Path) -> list[Path]:
    if not root.exists():
        raise InputUnreadableError(f"{root} does not exist", hint="pass a folder of Kineto traces", code="no-such-path")
    if root.is_file():
        return [root]
    files = []
    for where, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files += [Path(where, name) for name in sorted(names) if name.lower().endswith(_SUFFIXES)]
    if not files:
        raise InputUnreadableError(
            f"{root} holds no .json or .json.gz file",
            hint="pass the folder that torch.profiler wrote its traces to (moescope train --profile makes one)",
            code="empty-folder",
        )
    return files


def _relative(file: Path, base: Path) -> str:
    return file.relative_to(base).as_posix()


def _read_all(
    files: list[Path],
    folders: tuple[Path, Path],
    patterns: Patterns,
    progress: Progress | None,
    problems: list[Problem],
) -> list[tuple[dict[str, Any], Entry]]:
    base, folder = folders
    found = []
    for done, file in enumerate(files):
        relative = _relative(file, base)
        try:
            entry = entry_for(folder, relative, file_key(file, patterns.text))
            metadata = entry.load() or ingest(Job(file, relative, entry), patterns)
        except OSError as error:
            problems.append(
                Problem(relative, None, f"cannot be read ({error.strerror})", "its rank is missing", code="unreadable")
            )
            continue
        found.append((metadata, entry))
        if progress is not None:
            progress(done + 1, len(files), relative)
    return found


def _note_other(metadata: dict[str, Any], notes: list[str], problems: list[Problem]) -> None:
    name = metadata["file"]
    if looks_like_trace(name):
        problems.append(Problem(name, None, "no trace events in it", "skipped", code="not-a-trace"))
    else:
        notes.append(f"{name} is not a trace; skipped")


def _nothing_read(root: Path, problems: list[Problem], notes: list[str]) -> InputUnreadableError:
    details = "; ".join([*map(str, problems), *notes][:3])
    return InputUnreadableError(
        f"{root}: none of the files is a Kineto trace ({details})",
        hint="a trace is what torch.profiler's export_chrome_trace or tensorboard_trace_handler writes",
        code="no-trace",
    )


def _with_ranks(
    traces: list[tuple[dict[str, Any], Entry]], regex: re.Pattern[str] | None, problems: list[Problem]
) -> list[RankTrace]:
    named, nameless = [], []
    for metadata, entry in traces:
        rank = metadata["rank"]
        if rank is None:
            rank = rank_from_name(metadata["file"], regex)
        if rank is None:
            nameless.append((metadata, entry))
        else:
            named.append(_rank_trace(metadata, entry, rank))
    return named + _without_rank(nameless, bool(named), problems)


def _without_rank(
    nameless: list[tuple[dict[str, Any], Entry]], others: bool, problems: list[Problem]
) -> list[RankTrace]:
    if not nameless:
        return []
    one_process = len({worker_of(metadata["file"]) for metadata, _ in nameless}) == 1
    if one_process and not others:
        return [_rank_trace(metadata, entry, 0) for metadata, entry in nameless]
    names = [metadata["file"] for metadata, _ in nameless]
    if not others:
        raise InputUnreadableError(
            f"no rank in the content or the name of {len(names)} traces, such as {names[0]}",
            hint=r"say where the rank is in the path: --rank-regex 'gpu(\d+)'",
            code="ranks-unknown",
        )
    problems.extend(
        Problem(name, None, "neither its content nor its name tells the rank", "left out", code="rank-unknown")
        for name in names
    )
    return []


def _rank_trace(metadata: dict[str, Any], entry: Entry, rank: int) -> RankTrace:
    return RankTrace(
        rank=rank,
        window=0,
        file=metadata["file"],
        host=metadata["host"],
        device=metadata["device"],
        world_size=metadata["world_size"],
        groups={
            name: ProcessGroup(g["name"], g["description"], tuple(g["ranks"])) for name, g in metadata["groups"].items()
        },
        start_ns=metadata["start_ns"],
        end_ns=metadata["end_ns"],
        num_events=metadata["num_events"],
        num_device_events=metadata["num_device_events"],
        problems=[replace(Problem(**problem), rank=rank) for problem in metadata["problems"]],
        info=metadata["info"],
        labels=metadata["labels"],
        entry=entry,
    )


def _windows(traces: list[RankTrace], problems: list[Problem]) -> list[RankTrace]:
    """Number each rank's windows in time; of files that claim one rank and overlap in time keep the largest."""
    kept: list[RankTrace] = []
    for trace in sorted(traces, key=lambda t: (t.rank, -t.num_events, t.file)):
        rival = next((k for k in kept if k.rank == trace.rank and _overlap(k, trace)), None)
        if rival is None:
            kept.append(trace)
            continue
        problems.append(
            Problem(
                trace.file,
                trace.rank,
                f"claims rank {trace.rank} at the same time as {rival.file}",
                f"left out ({trace.num_events:,} events); {rival.file} is kept ({rival.num_events:,} events)",
                code="duplicate-rank",
            )
        )
    kept.sort(key=lambda t: (t.rank, t.start_ns))
    for before, trace in pairwise(kept):
        trace.window = before.window + 1 if before.rank == trace.rank else 0
    return kept


def _overlap(a: RankTrace, b: RankTrace) -> bool:
    return a.start_ns < b.end_ns and b.start_ns < a.end_ns
