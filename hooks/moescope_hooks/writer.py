"""Parquet parts of the telemetry tables, written by a thread of their own.

A part is written whole beside its final name and then renamed, so that a killed job loses at most what was not
flushed yet. A failed write (a full disk, a vanished path) costs rows, never the training loop: the loss is logged
once, and noted in ``telemetry/rank{r}-gaps.json`` as soon as the folder can be written again.
"""

from __future__ import annotations

import enum
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from moescope_hooks.background import Background
from moescope_hooks.schema import PARTS, part_path

Rows = list[Mapping[str, Any]]
MakeRows = Callable[[], Iterable[tuple[str, Rows]]]
log = logging.getLogger("moescope")

INTERRUPTED_WAIT_S = 10.0
"""How long an interrupt of :meth:`TelemetryWriter.close` waits for what is queued, which takes milliseconds."""
_INTERRUPTS = 20
"""More than anybody sends while a part is written."""


class Gaps:
    """What telemetry lost and why: one warning for all, and a file of the details."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._gaps: list[dict[str, Any]] = []
        self._earlier: list[dict[str, Any]] | None = None
        self._warned = False
        self._lock = threading.Lock()

    def add(self, what: str, error: BaseException | str) -> None:
        """Note that ``what`` is missing from the telemetry because of ``error``; warn the first time."""
        reason = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        with self._lock:
            last = self._gaps[-1] if self._gaps else None
            if last and (last["what"], last["reason"]) == (what, reason):
                last["count"] += 1
                return
            self._gaps.append({"at_ns": time.time_ns(), "what": what, "reason": reason, "count": 1})
            first, self._warned = not self._warned, True
        if first:
            log.warning("moescope rank %d: %s is lost (%s); training goes on, gaps are noted", self.rank, what, reason)

    def save(self, telemetry: Path) -> None:
        """Write the list of gaps, if there are any, after those of an earlier start of the same run."""
        with self._lock:
            gaps = [dict(gap) for gap in self._gaps]
        if not gaps:
            return
        path = telemetry / f"rank{self.rank}-gaps.json"
        if self._earlier is None:
            self._earlier = json.loads(path.read_text()) if path.exists() else []
        text = json.dumps(self._earlier + gaps, indent=1)
        write_atomically(path, lambda beside: beside.write_text(text))

    def __len__(self) -> int:
        return len(self._gaps)


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a file beside ``path``, then rename it to ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(beside)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _uninterrupted(write: Callable[[], None]) -> None:
    """Call ``write`` until no Ctrl-C ends it: polars raises that in whichever thread it works for."""
    for _ in range(_INTERRUPTS):
        try:
            return write()
        except KeyboardInterrupt:
            continue
    return write()


def _next_part(folder: Path, rank: int) -> int:
    """The first free part number of ``rank``: a resumed run adds to what is there."""
    prefix = f"rank{rank}-"
    numbers = [path.stem.removeprefix(prefix) for path in folder.glob(f"{prefix}*.parquet")]
    return max((int(number) for number in numbers if number.isdecimal()), default=-1) + 1


class _Order(enum.Enum):
    """What the writer's thread is asked to do beside taking rows."""

    FLUSH = enum.auto()
    CLOSE = enum.auto()


class TelemetryWriter:
    """Takes rows from the training thread and writes them as parts from another."""

    def __init__(
        self, telemetry: Path, rank: int, gaps: Gaps, *, flush_steps: int = 50, flush_seconds: float = 10.0
    ) -> None:
        self.telemetry = telemetry
        self.rank = rank
        self.gaps = gaps
        self.flush_steps = flush_steps
        self.flush_seconds = flush_seconds
        self._rows: dict[str, Rows] = {name: [] for name in PARTS}
        self._parts = {table: _next_part(telemetry / table, rank) for table in PARTS}
        self._steps_since_flush = 0
        self._last_flush = time.monotonic()
        self._queue: queue.SimpleQueue[MakeRows | _Order] = queue.SimpleQueue()
        self._thread = Background(self._run, "moescope-telemetry", daemon=True)
        self._thread.start()

    def put(self, make_rows: MakeRows) -> None:
        """Queue one step's rows; ``make_rows`` runs on the writer's thread and may wait for the device there."""
        self._queue.put(make_rows)

    def flush(self) -> None:
        """Have all rows queued so far written as parts, soon; does not wait for it."""
        self._queue.put(_Order.FLUSH)

    def close(self, timeout_s: float = 60.0) -> None:
        """Write what is queued and stop the thread.

        A launcher may stop this process while it leaves, and Ctrl-C reaches it beside its launcher's own signal: such
        an interrupt is passed on, but after the rows are written.
        """
        self._queue.put(_Order.CLOSE)
        try:
            written = self._thread.wait(timeout_s)
        except BaseException:
            self._thread.wait(min(timeout_s, INTERRUPTED_WAIT_S))
            raise
        if not written:
            self.gaps.add("the last telemetry part", f"not written within {timeout_s:.0f} s")

    def _run(self) -> None:
        while True:
            wait_s = max(0.0, self._last_flush + self.flush_seconds - time.monotonic())
            try:
                item = self._queue.get(timeout=wait_s)
            except queue.Empty:
                item = _Order.FLUSH
            if isinstance(item, _Order):
                self._flush()
                if item is _Order.CLOSE:
                    return
                continue
            self._take(item)
            due = time.monotonic() - self._last_flush >= self.flush_seconds
            if due or self._steps_since_flush >= self.flush_steps:
                self._flush()

    def _take(self, make_rows: MakeRows) -> None:
        try:
            for table, rows in make_rows():
                self._rows[table].extend(rows)
            self._steps_since_flush += 1
        except Exception as error:  # telemetry must never end a training run
            self.gaps.add("a step's telemetry", error)

    def _flush(self) -> None:
        self._last_flush = time.monotonic()
        self._steps_since_flush = 0
        for table, rows in self._rows.items():
            if rows:
                self._rows[table] = []
                self._write_part(table, rows)
        try:
            self.gaps.save(self.telemetry)
        except Exception as error:  # the disk is full, or a list from an earlier start is damaged
            self.gaps.add("the list of gaps", error)

    def _write_part(self, table: str, rows: Rows) -> None:
        try:
            frame = pl.DataFrame(rows, schema=dict(PARTS[table]), orient="row")
            path = part_path(self.telemetry, table, self.rank, self._parts[table])
            _uninterrupted(
                lambda: write_atomically(path, lambda beside: frame.write_parquet(beside, compression="zstd"))
            )
            self._parts[table] += 1
        except (Exception, KeyboardInterrupt) as error:  # a full disk, a vanished path, or rows polars refuses
            steps = sorted({row["step"] for row in rows if "step" in row})
            which = f" of steps {steps[0]} to {steps[-1]}" if steps else ""
            self.gaps.add(f"{table}{which}", error)
