"""One profiled window of one rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import polars as pl

from moescope.errors import InputUnreadableError
from moescope.trace.model import EVENT_SCHEMA, CategoryType, Problem, ProcessGroup
from moescope.trace.patterns import Patterns, load_patterns
from moescope.trace.store import Entry

_TEXTS = ("input_dims", "input_types", "concrete_inputs")


@dataclass(slots=True)
class RankTrace:
    """What one file says of one rank; its tables are read from the store when asked for."""

    rank: int
    window: int
    """Windows of a rank count from 0 in time."""
    file: str
    """Path relative to the folder that was opened."""
    host: str | None
    device: str
    """Such as ``NVIDIA H100 80GB HBM3``; ``CPU`` where nothing ran on a device."""
    world_size: int | None
    groups: dict[str, ProcessGroup]
    start_ns: int
    end_ns: int
    num_events: int
    num_device_events: int
    problems: list[Problem]
    info: dict[str, Any]
    """The file's top-level metadata."""
    labels: dict[str, str]
    """Names and labels of the processes in the trace, by ``"process_name {pid}"`` and ``"process_labels {pid}"``."""
    entry: Entry = field(repr=False)
    patterns: Patterns = field(default_factory=load_patterns, repr=False, compare=False)
    """What names mean, as the trace was read."""

    def events(self, columns: Sequence[str] | None = None, categories: Iterable[str] | None = None) -> pl.DataFrame:
        """Complete events, sorted by ``start_ns``; only ``columns`` and only rows of ``categories`` where given."""
        with self._heals():
            return self._events(columns, categories)

    def _events(self, columns: Sequence[str] | None, categories: Iterable[str] | None) -> pl.DataFrame:
        frame = pl.scan_parquet(self.entry.table("events"))
        if categories is not None:
            frame = frame.filter(pl.col("category").is_in(pl.Series(list(categories), dtype=CategoryType).implode()))
        wanted = list(EVENT_SCHEMA) if columns is None else list(columns)
        return frame.select(pl.col(name).cast(pl.String) if name in _TEXTS else name for name in wanted).collect()

    def comm_args(self) -> pl.DataFrame:
        """Communication arguments by event ``index``."""
        with self._heals():
            return pl.read_parquet(self.entry.table("comm"))

    def memory(self) -> pl.DataFrame:
        """Allocations and frees, sorted by ``ts_ns``."""
        with self._heals():
            return pl.read_parquet(self.entry.table("memory"))

    @contextmanager
    def _heals(self) -> Iterator[None]:
        """A table that is damaged costs this run; the next one reads the trace anew."""
        try:
            yield
        except (pl.exceptions.ComputeError, OSError) as error:
            self.entry.forget()
            raise InputUnreadableError(
                f"{self.file}: what is stored of it is damaged ({str(error).splitlines()[0]})",
                hint="Run the command again: the trace is read anew.",
                code="store-damaged",
            ) from error


def from_metadata(metadata: dict[str, Any], entry: Entry, rank: int) -> RankTrace:
    """The trace whose stored metadata is ``metadata``, as window 0 of ``rank``."""
    groups = {
        name: ProcessGroup(group["name"], group["description"], tuple(group["ranks"]))
        for name, group in metadata["groups"].items()
    }
    as_they_are = ("file", "host", "device", "world_size", "start_ns", "end_ns")
    return RankTrace(
        rank=rank,
        window=0,
        groups=groups,
        problems=[replace(msgspec.convert(problem, Problem), rank=rank) for problem in metadata["problems"]],
        num_events=metadata["num_events"],
        num_device_events=metadata["num_device_events"],
        info=metadata["info"],
        labels=metadata["labels"],
        entry=entry,
        **{name: metadata[name] for name in as_they_are},
    )
