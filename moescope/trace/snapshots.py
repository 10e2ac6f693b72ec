"""Memory snapshots of torch's caching allocator (``torch.cuda.memory._dump_snapshot``), one pickle per rank.

A snapshot holds the segments that the allocator got from the driver, divided into blocks, and, where the history was
recorded, every action since, per device. Only plain data is read (``plain_pickle``), and only the fields named here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl

from moescope.intake import list_files, valid_text
from moescope.trace.identity import rank_from_name
from moescope.trace.model import Problem
from moescope.trace.plain_pickle import NotPlainError, load_plain

SUFFIXES = (".pickle", ".pkl")
MAX_FILES = 4096
MAX_ROWS = 20_000_000
"""Blocks and actions read of one file; shared lists can make a small file claim any number."""
MAX_FRAMES = 64

SEGMENTS: dict[str, Any] = {
    "device": pl.Int64, "address": pl.UInt64, "total_size": pl.Int64, "num_blocks": pl.Int64,
}  # fmt: skip
BLOCKS: dict[str, Any] = {
    "device": pl.Int64, "segment": pl.Int64, "address": pl.UInt64, "size": pl.Int64, "requested_size": pl.Int64,
    "state": pl.String, "frames": pl.Int64, "metadata": pl.String,
}  # fmt: skip
"""``frames``: index into ``stacks``; -1 for none."""
ACTIONS: dict[str, Any] = {
    "device": pl.Int64, "action": pl.String, "address": pl.UInt64, "size": pl.Int64, "time_us": pl.Int64,
    "frames": pl.Int64, "metadata": pl.String,
}  # fmt: skip

Frame = tuple[str, int, str]
"""File, line, function; innermost first."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One file. ``segments``, ``blocks``, ``actions``: tables of these columns; actions in order."""

    rank: int
    file: str
    segments: pl.DataFrame
    blocks: pl.DataFrame
    actions: pl.DataFrame
    stacks: tuple[tuple[Frame, ...], ...]


def snapshot_files(folder: Path) -> list[Path]:
    """Files in the folder that may be snapshots by their names, sorted; hidden folders are left out."""
    if not folder.is_dir():
        return []
    seen = (path for path in list_files(folder, SUFFIXES).files if not path.name.startswith("."))
    return sorted(islice(seen, MAX_FILES))


def open_snapshots(
    folder: Path, ranks: Sequence[int], rank_regex: str | None = None
) -> tuple[list[Snapshot], list[Problem]]:
    """(snapshots by rank, what could not be read); a pickle of anything else is passed over in silence.

    ``ranks``: those with traces; the only one takes a file whose name tells none. Of several files of a rank the last
    by name counts.
    """
    pattern = re.compile(rank_regex) if rank_regex else None
    snapshots: dict[int, Snapshot] = {}
    problems = []
    for path in snapshot_files(folder):
        name = valid_text(path.relative_to(folder).as_posix())
        rank = rank_from_name(name, pattern)
        rank = rank if rank is not None else rank_from_name(name.replace("/", "_"), None)
        rank = ranks[0] if rank is None and len(ranks) == 1 else rank
        try:
            found = load_plain(path)
            if not _is_snapshot(found):
                continue
            if rank is None:
                raise NotPlainError("its name does not tell its rank (rank3_memory.pickle does)")
            snapshots[rank] = parse(found, rank, name)
        except NotPlainError as error:
            problems.append(Problem(name, rank, f"memory snapshot not read: {error}", "its memory is in no number"))
    return [snapshots[rank] for rank in sorted(snapshots)], problems


def _is_snapshot(found: Any) -> bool:
    return isinstance(found, dict) and isinstance(found.get("segments"), list)


def parse(found: Mapping[str, Any], rank: int, file: str) -> Snapshot:
    """The snapshot's tables; raises ``NotPlainError`` where a field is not what it should be."""
    reader = _Reader()
    try:
        segments, blocks = reader.segments(found["segments"])
        traces = found.get("device_traces") or []
        actions = [row for device, trace in enumerate(traces) for row in reader.actions(device, trace)]
        return Snapshot(
            rank,
            file,
            pl.DataFrame(segments, schema=SEGMENTS, orient="row"),
            pl.DataFrame(blocks, schema=BLOCKS, orient="row"),
            pl.DataFrame(actions, schema=ACTIONS, orient="row"),
            tuple(reader.stacks),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, pl.exceptions.PolarsError) as error:
        raise NotPlainError(f"it is no snapshot as torch writes them ({type(error).__name__}: {error})") from error


class _Reader:
    """Fields checked one by one; equal stacks are kept once."""

    def __init__(self) -> None:
        self.stacks: list[tuple[Frame, ...]] = []
        self._index: dict[tuple[Frame, ...], int] = {}
        self._known: dict[int, int] = {}
        self._left = MAX_ROWS

    def segments(self, entries: Sequence[Any]) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        segments, blocks = [], []
        for number, entry in enumerate(entries):
            device, address = _number(entry.get("device", 0)), _number(entry["address"])
            parts = entry["blocks"]
            segments.append((device, address, _number(entry["total_size"]), len(parts)))
            for part in parts:
                self._count()
                size = _number(part["size"])
                at = _number(part.get("address", address))
                wanted = _number(part.get("requested_size", size))
                blocks.append((device, number, at, size, wanted, str(part["state"]), *self._origin(part)))
                address = at + size
        return segments, blocks

    def actions(self, device: int, entries: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        for entry in entries:
            self._count()
            address = _number(entry.get("addr", 0) if entry["action"] != "oom" else 0)
            moment = entry.get("time_us")
            yield (
                device, str(entry["action"]), address, _number(entry.get("size", 0)),
                None if moment is None else _number(moment), *self._origin(entry),
            )  # fmt: skip

    def _origin(self, entry: Mapping[str, Any]) -> tuple[int, str]:
        metadata = entry.get("user_metadata") or ""
        return self._stack(entry.get("frames") or []), valid_text(metadata) if isinstance(metadata, str) else ""

    def _stack(self, frames: Sequence[Any]) -> int:
        if not frames:
            return -1
        known = self._known.get(id(frames))
        if known is None:
            stack = tuple(map(_frame, frames[:MAX_FRAMES]))
            known = self._index.setdefault(stack, len(self.stacks))
            if known == len(self.stacks):
                self.stacks.append(stack)
            self._known[id(frames)] = known
        return known

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"it holds more than {MAX_ROWS:,} blocks and actions")


def _frame(entry: Mapping[str, Any]) -> Frame:
    return valid_text(str(entry["filename"])), _number(entry["line"]), valid_text(str(entry["name"]))


def _number(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r:.40} is no size or address")
    return value
