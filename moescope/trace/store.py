"""The columnar store: one entry of four files per input file, keyed by the input's identity.

Lives in ``.moescope/trace`` of the folder that was opened, or under the user's cache folder where that one cannot be
written. Safe to delete. An entry is ``{path hash}-{key}.json`` (metadata, read on reopening) and three Parquet files
that are read on demand. The metadata is written last: an entry without it does not exist.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from moescope.trace.model import SCHEMA_VERSION, Problem, ProcessGroup

_SAMPLE_BYTES = 64 * 1024
_ABANDONED_S = 24 * 3600.0
_TABLES = ("events", "comm", "memory")
_PROBE = bytes(1 << 16)
_ERRNO = re.compile(r"os error (\d+)")


class StoreError(OSError):
    """An entry cannot be written; the trace itself was read."""


class _Trace(msgspec.Struct):
    """The stored metadata of a trace, as far as something depends on them."""

    file: str
    rank: int | None
    world_size: int | None
    host: str | None
    device: str
    groups: dict[str, ProcessGroup]
    start_ns: int
    end_ns: int
    num_events: int
    num_device_events: int
    info: dict[str, Any]
    labels: dict[str, str]
    remarks: list[str]
    problems: list[Problem]
    tables: dict[str, tuple[int, int]]
    """Size and modification time of each table."""


class _Stored(msgspec.Struct):
    """What every metadata file holds."""

    file: str
    is_trace: bool
    refused: str = ""
    parts: list[_Trace] = []


def file_key(path: Path, patterns_text: str) -> str:
    """Identity of an input file: size, modification time, first and last 64 KiB, the name patterns, the schema.

    The whole content is not hashed, so that reopening a large folder is quick; a change in the middle of a file
    that keeps its size and its modification time goes unnoticed.
    """
    status = path.stat()
    digest = hashlib.blake2b(digest_size=12)
    digest.update(f"{SCHEMA_VERSION} {status.st_size} {status.st_mtime_ns}\n".encode())
    with path.open("rb") as stream:
        digest.update(stream.read(_SAMPLE_BYTES))
        if status.st_size > _SAMPLE_BYTES:
            stream.seek(max(_SAMPLE_BYTES, status.st_size - _SAMPLE_BYTES))
            digest.update(stream.read(_SAMPLE_BYTES))
    digest.update(patterns_text.encode())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one input file's tables and metadata are stored."""

    folder: Path
    path_hash: str
    key: str

    @property
    def metadata(self) -> Path:
        """The file whose presence makes the entry valid."""
        return self.folder / f"{self.path_hash}-{self.key}.json"

    def table(self, name: str) -> Path:
        """The Parquet file of the table ``events``, ``comm`` or ``memory``."""
        return self.folder / f"{self.path_hash}-{self.key}.{name}.parquet"

    def load(self) -> dict[str, Any] | None:
        """The stored metadata; None when there is no valid entry, whole and with the tables that it was stored with."""
        try:
            metadata: dict[str, Any] = json.loads(self.metadata.read_text(encoding="utf-8"))
            msgspec.convert(metadata, _Stored)
            entries = [(self.part(part["rank"]), part) for part in metadata.get("parts", ())]
            if metadata["is_trace"]:
                msgspec.convert(metadata, _Trace)
                entries.append((self, metadata))
            are_same = all(entry.table_states() == stored["tables"] for entry, stored in entries)
        except (OSError, ValueError, RecursionError, msgspec.ValidationError):
            return None
        return metadata if are_same else None

    def table_states(self) -> dict[str, list[int]]:
        """Size and modification time of each table. Raises ``OSError`` where one is missing."""
        found = {name: self.table(name).stat() for name in _TABLES}
        return {name: [status.st_size, status.st_mtime_ns] for name, status in found.items()}

    def forget(self) -> None:
        """Make the entry invalid, of whose tables one turned out to be damaged."""
        whole = Entry(self.folder, self.path_hash, self.key.partition("-")[0])
        whole.metadata.unlink(missing_ok=True)

    def part(self, rank: int) -> Entry:
        """The entry of one rank of a file that holds several."""
        return Entry(self.folder, self.path_hash, f"{self.key}-r{rank}")

    def save_table(self, name: str, frame: pl.DataFrame) -> None:
        """Write the table called ``name``; the entry becomes valid with :meth:`save_metadata`."""
        _write(self.table(name), partial(frame.write_parquet, statistics=False, compression="lz4"))

    def save_metadata(self, metadata: dict[str, Any]) -> None:
        """Complete the entry; remove those of earlier states of the same input file, and what a killed reader left."""
        text = json.dumps(metadata, ensure_ascii=False)
        _write(self.metadata, lambda path: path.write_text(text, encoding="utf-8", errors="replace"))
        for stale in self.folder.glob(f"{self.path_hash}-*"):
            current = stale.name.startswith(f"{self.path_hash}-{self.key.partition('-')[0]}")
            if not current or (stale.suffix == ".partial" and _is_old(stale)):
                stale.unlink(missing_ok=True)


def entry_for(folder: Path, relative: str, key: str) -> Entry:
    """The entry of the input file at ``relative`` with identity ``key``."""
    return Entry(folder, hashlib.blake2b(relative.encode("utf-8", "surrogateescape"), digest_size=6).hexdigest(), key)


def _write(path: Path, writer: Callable[[Path], object]) -> None:
    beside = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        writer(beside)
        os.replace(beside, path)
    except OSError as error:
        raise StoreError(error.errno, error.strerror, str(path)) from error
    except pl.exceptions.PolarsError as error:
        found = _ERRNO.search(str(error))
        number = int(found[1]) if found else errno.EIO
        raise StoreError(number, os.strerror(number), str(path)) from error
    finally:
        with suppress(OSError):
            beside.unlink()


def _is_old(path: Path) -> bool:
    """Whether nobody writes the file any more; one that is gone is not old."""
    return path.exists() and time.time() - path.stat().st_mtime > _ABANDONED_S


def remove_partials(folder: Path, processes: Iterable[int]) -> None:
    """Remove what processes that were ended had half written."""
    for process in processes:
        for left in folder.glob(f"*.{process}.partial"):
            left.unlink(missing_ok=True)


def store_folder(directory: Path) -> tuple[Path, bool]:
    """Folder for the entries of ``directory`` and whether it lies inside it; created if need be."""
    inside = directory / ".moescope" / "trace"
    # A folder without any write bit is meant to stay as it is, even where the user could override that (root).
    if directory.stat().st_mode & 0o222 and _usable(inside):
        return inside, True
    return outside_folder(directory), False


def outside_folder(directory: Path) -> Path:
    """Folder for the entries of ``directory`` under the user's cache folder; created if need be."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = hashlib.blake2b(os.fsencode(directory.resolve()), digest_size=10).hexdigest()
    outside = cache / "moescope" / name / "trace"
    outside.mkdir(parents=True, exist_ok=True)
    return outside


def _usable(folder: Path) -> bool:
    probe = folder / f"probe.{os.getpid()}.partial"
    try:
        str(folder).encode()  # polars takes paths as text
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(_PROBE)
    except (OSError, UnicodeEncodeError):
        return False
    finally:
        with suppress(OSError):
            probe.unlink()
    return True
