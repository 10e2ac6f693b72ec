"""The timeline of a folder: what is there, tiles of it, single slices, ranges and searches."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from moescope.trace import RankTrace, TraceDirectory
from moescope.views.model import Analysis
from moescope.views.palette import GROUPS
from moescope.views.timeline.colours import SLICE_GROUPS
from moescope.views.timeline.encode import encode
from moescope.views.timeline.exchanges import Exchanges
from moescope.views.timeline.lanes import WINDOW_SHIFT, Lane, Names, make_lanes, on_common_clock
from moescope.views.timeline.marks import microbatch_spans
from moescope.views.timeline.rows import Row
from moescope.views.timeline.strip_file import Strips
from moescope.views.timeline.strips import CLASSES, NO_PIECES, Strip

MOST_BUCKETS = 8192
MOST_SHIFT = 50
MOST_OPEN_RANKS = 32
"""Ranks whose lanes are kept; the longest unused is let go."""
MOST_NAME_CHARACTERS = 200
MOST_LINKS = 60
RowAddress = tuple[int, str, int]
"""Rank, lane key, row."""


class Timeline:
    """Lazily read, rank by rank; safe to ask from several threads. Times are ns since :attr:`base_ns`."""

    def __init__(
        self,
        analysis: Analysis,
        strips: Strips,
        directory: Callable[[], TraceDirectory],
        rename: Callable[[str], str] | None = None,
    ) -> None:
        """``directory`` is called when events are first asked for; ``rename`` changes the names in tiles."""
        self._analysis = analysis
        self._clock = {rank: clock for clock in analysis.clock for rank in clock.ranks}
        self._sources = {source.rank: source for source in reversed(analysis.sources)}
        self.ranks = tuple(sorted(self._sources))
        """The ranks with a trace."""
        self.base_ns = strips.base_ns
        self.length_ns = max((source.end_ns for source in analysis.sources), default=self.base_ns + 1) - self.base_ns
        self._strips = strips
        self.exchanges = Exchanges(analysis.collectives, self.base_ns)
        self._names = Names(rename)
        self._lanes: dict[int, tuple[Lane, ...]] = {}
        self._directory = directory
        self._traces: Mapping[int, Sequence[RankTrace]] | None = None
        self._lock = threading.RLock()

    def meta(self) -> dict[str, Any]:
        """What a canvas needs before its first tile."""
        steps: dict[int, list[int]] = {}
        for row in self._analysis.ranks:
            span = steps.setdefault(row.step, [row.start_ns, row.start_ns + row.window_ns])
            span[0], span[1] = min(span[0], row.start_ns), max(span[1], row.start_ns + row.window_ns)
        return {
            "ok": True,
            "base_ns": str(self.base_ns),
            "length_ns": self.length_ns,
            "classes": [_class(CLASSES[kind]) for kind in self._strips.used],
            "groups": SLICE_GROUPS,
            "ranks": [self._rank_meta(rank) for rank in self.ranks],
            "steps": [{"step": s, "start": a - self.base_ns, "end": b - self.base_ns} for s, (a, b) in steps.items()],
        }

    def _rank_meta(self, rank: int) -> dict[str, Any]:
        clock, source = self._clock.get(rank), self._sources[rank]
        reach = [clock.low_ns - clock.offset_ns, clock.high_ns - clock.offset_ns] if clock else [0, 0]
        host = clock.host if clock else source.host
        return {"rank": rank, "host": host, "device": source.device, "uncertainty_ns": reach}

    def strip(self, rank: int) -> Strip:
        """What a rank spent its steps on; KeyError where there is no such rank."""
        if rank not in self._sources:
            raise KeyError(rank)
        return self._strips.of_rank.get(rank, NO_PIECES)

    def _traces_of(self, rank: int) -> Sequence[RankTrace]:
        if rank not in self._sources:
            raise KeyError(rank)
        with self._lock:
            if self._traces is None:
                traces: dict[int, list[RankTrace]] = defaultdict(list)
                for trace in self._directory().ranks:
                    traces[trace.rank].append(trace)
                self._traces = traces
            return self._traces.get(rank, ())

    def lanes(self, rank: int) -> tuple[Lane, ...]:
        """A rank's streams and threads; KeyError where there is no such rank."""
        with self._lock:
            made = self._lanes.pop(rank, None)
            if made is None:
                made = make_lanes(self._traces_of(rank), self._clock.get(rank), self.base_ns, self._names)
            self._lanes[rank] = made
            while len(self._lanes) > MOST_OPEN_RANKS:
                self._lanes.pop(next(iter(self._lanes)))
            return made

    def lanes_meta(self, rank: int) -> dict[str, Any]:
        """Keys, titles and heights of a rank's lanes."""
        lanes = [{"key": lane.key, "title": lane.title, "rows": len(lane.rows)} for lane in self.lanes(rank)]
        return {"ok": True, "rank": rank, "lanes": lanes}

    def row(self, address: RowAddress) -> Row:
        """One row; KeyError where there is none."""
        rank, key, index = address
        lane = next((lane for lane in self.lanes(rank) if lane.key == key), None)
        if lane is None or not 0 <= index < len(lane.rows):
            raise KeyError(address)
        return lane.rows[index]

    def tile(
        self, first_bucket: int, num_buckets: int, shift: int, strips: Sequence[int], rows: Sequence[RowAddress]
    ) -> bytes:
        """What is in ``num_buckets`` buckets of ``2**shift`` ns from ``first_bucket`` on, as :mod:`.encode` says."""
        arrays: list[Any] = [self._shares(rank, first_bucket, num_buckets, shift) for rank in strips]
        described, used = [], []
        for address in rows:
            sizes, parts, names = _encode_row(self.row(address), first_bucket, num_buckets, shift)
            described.append({"rank": address[0], "lane": address[1], "row": address[2], **sizes})
            arrays += parts
            used.append(names)
        numbers = np.unique(np.concatenate(used)).tolist() if used else []
        texts = {number: self._names.texts[number][:MOST_NAME_CHARACTERS] for number in numbers}
        head: dict[str, Any] = {"first": first_bucket, "count": num_buckets, "shift": shift, "strips": list(strips)}
        head["classes"] = len(self._strips.used)
        return encode({**head, "rows": described, "names": texts}, arrays)

    def _shares(self, rank: int, first_bucket: int, num_buckets: int, shift: int) -> Any:
        strip, used = self.strip(rank), self._strips.used
        if strip.columns != used:
            return np.zeros((len(used), num_buckets), dtype=np.uint8)
        return strip.shares(first_bucket, num_buckets, shift)

    def range(self, low_ns: int, high_ns: int) -> dict[str, Any]:
        """Time of each class in use on each rank in a range, exact; the rest of the range lies outside the steps."""
        ranks = []
        for rank in self.ranks:
            busy = self.strip(rank).busy(low_ns, high_ns)
            ranks.append({"rank": rank, "busy_ns": [busy[kind] for kind in self._strips.used]})
        return {"ok": True, "classes": [CLASSES[kind] for kind in self._strips.used], "ranks": ranks}

    def slice(self, address: RowAddress, position: int) -> dict[str, Any]:
        """Everything recorded about one slice; KeyError where there is none."""
        row = self.row(address)
        if not 0 <= position < len(row):
            raise KeyError(position)
        window, index = int(row.event[position]) >> WINDOW_SHIFT, int(row.event[position]) & ((1 << WINDOW_SHIFT) - 1)
        trace = next(trace for trace in self._traces_of(address[0]) if trace.window == window)
        event = _details(trace, index)
        start = int(row.start_ns[position])
        return {"ok": True, "rank": address[0], "start": start, "start_ns": str(start + self.base_ns),
                "dur": int(row.end_ns[position]) - start, "name": self._names.texts[int(row.name[position])],
                "details": event}  # fmt: skip

    def neighbour(self, address: RowAddress, position: int, step: int) -> dict[str, Any]:
        """The slice ``step`` places after one in its row, the last or first where there is none."""
        row = self.row(address)
        if not 0 <= position < len(row):
            raise KeyError(position)
        position = min(max(position + step, 0), len(row) - 1)
        return {**self.slice(address, position), "position": position}

    def at(self, rank: int, at_ns: int) -> dict[str, Any]:
        """The collective a rank was in at a moment, with every rank's part in it; ``collective`` is null where none."""
        if rank not in self._sources:
            raise KeyError(rank)
        return {"ok": True, "collective": self.exchanges.at(rank, at_ns)}

    def links(self, low_ns: int, high_ns: int, least_wait_ns: int) -> dict[str, Any]:
        """The collectives in a range whose waits a page links to the rank that caused them."""
        return {"ok": True, "collectives": self.exchanges.between(low_ns, high_ns, least_wait_ns, MOST_LINKS)}

    def microbatches(self) -> dict[str, Any]:
        """Where the microbatches of the first rank lie, by the ranges that the hooks record; empty without them."""
        rank = next(iter(self.ranks), -1)
        traces = self._traces_of(rank) if self.ranks else ()
        spans = [span for trace in traces for span in microbatch_spans(trace)]
        ends = np.array([span[1:] for span in spans], dtype=np.int64).reshape(-1, 2)
        common = on_common_clock(ends, self._clock.get(rank), self.base_ns).tolist()
        numbered = zip((span[0] for span in spans), common, strict=True)
        return {"ok": True, "microbatches": [{"microbatch": n, "start": a, "end": b} for n, (a, b) in numbered]}

    def search(self, word: str, most: int = 500) -> dict[str, Any]:
        """Slices whose name contains ``word`` (case-insensitive), in time order, at most ``most`` of each rank."""
        found = []
        for rank in self.ranks:
            for trace in self._traces_of(rank):
                hits = _matching(trace, word, most)
                starts = on_common_clock(hits["start_ns"].to_numpy(), self._clock.get(rank), self.base_ns)
                rows = zip(starts.tolist(), hits["dur_ns"].to_list(), hits["name"].to_list(), strict=True)
                found += [{"rank": rank, "start": s, "dur": d, "name": n[:MOST_NAME_CHARACTERS]} for s, d, n in rows]
        found.sort(key=lambda hit: (hit["start"], hit["rank"]))
        return {"ok": True, "hits": found[:most], "num_hits": len(found), "cut": len(found) > most}


def _class(key: str) -> dict[str, Any]:
    group = next(group for group in GROUPS if group.key == key)
    return {"key": key, "label": group.label, "hatched": group.hatched}


def _matching(trace: RankTrace, word: str, most: int) -> pl.DataFrame:
    events = trace.events(("start_ns", "dur_ns", "name"))
    matching = pl.col("name").cast(pl.String).str.to_lowercase().str.contains(word.lower(), literal=True)
    return events.filter(matching).head(most + 1).with_columns(pl.col("name").cast(pl.String))


def _details(trace: RankTrace, index: int) -> dict[str, Any]:
    row = trace.events().filter(pl.col("index") == index)
    event = (
        {}
        if row.is_empty()
        else row.with_columns(pl.col("name", "category", "kind").cast(pl.String)).row(0, named=True)
    )
    args = trace.comm_args().filter(pl.col("index") == index)
    arguments = {} if args.is_empty() else args.row(0, named=True)
    hidden = ("index", "start_ns", "dur_ns", "name")
    return {key: value for key, value in {**event, **arguments}.items() if value is not None and key not in hidden}


def _encode_row(row: Row, first_bucket: int, num_buckets: int, shift: int) -> tuple[dict[str, int], list[Any], Any]:
    longs, shorts = row.query(first_bucket, num_buckets, shift)
    long_names, short_names = row.name[longs].astype(np.uint32), row.name[shorts.longest].astype(np.uint32)
    arrays = [
        row.start_ns[longs].astype(np.float64),
        (row.end_ns[longs] - row.start_ns[longs]).astype(np.float64),
        long_names,
        longs.astype(np.uint32),
        row.group[longs],
        shorts.busy_ns / float(1 << shift),
        (shorts.bucket - first_bucket).astype(np.uint32),
        shorts.count.astype(np.uint32),
        short_names,
        shorts.longest.astype(np.uint32),
        row.group[shorts.longest],
    ]
    head = {"longs": len(longs), "shorts": len(shorts.bucket)}
    return head, arrays, np.concatenate((long_names, short_names))
