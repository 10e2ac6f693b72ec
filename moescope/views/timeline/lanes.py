"""A rank's events as lanes: streams of its device, threads of its host, each a stack of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from moescope.trace import RankTrace
from moescope.views.model import Clock
from moescope.views.timeline.colours import slice_groups
from moescope.views.timeline.rows import IntArray, Row, depths

DEVICE = ("kernel", "copy", "memset")
COLUMNS = ("index", "start_ns", "dur_ns", "category", "kind", "name", "pid", "tid", "device", "stream")
WINDOW_SHIFT = 40


@dataclass(frozen=True, slots=True)
class Lane:
    """One stream or thread."""

    key: str
    title: str
    rows: tuple[Row, ...]


class Names:
    """All names of a timeline by number."""

    def __init__(self, rename: Callable[[str], str] | None = None) -> None:
        """``rename`` changes what is shown, for example to take out paths."""
        self.texts: list[str] = []
        self._rename = rename or str
        self._numbers: dict[str, int] = {}

    def numbers(self, names: pl.Series) -> npt.NDArray[np.int32]:
        """The number of each name; new names get the next."""
        for name in names.unique().cast(pl.String).to_list():
            if name not in self._numbers:
                self._numbers[name] = len(self.texts)
                self.texts.append(self._rename(name))
        mapped = names.cast(pl.String).replace_strict(self._numbers, return_dtype=pl.Int32)
        return mapped.to_numpy()


def on_common_clock(local_ns: IntArray, clock: Clock | None, base_ns: int) -> IntArray:
    """Local times of a host as ns since ``base_ns`` on the common clock, in integers but for the drift."""
    if clock is None:
        return local_ns - base_ns
    drift = np.rint(clock.drift_ppm * 1e-6 * (local_ns - clock.origin_ns)).astype(np.int64)
    common: IntArray = local_ns - (clock.offset_ns + base_ns) - drift
    return common


def _common(events: pl.DataFrame, clock: Clock | None, base_ns: int) -> tuple[IntArray, IntArray]:
    local = events["start_ns"].to_numpy()
    start = on_common_clock(local, clock, base_ns)
    return start, start + events["dur_ns"].to_numpy()


def make_lanes(traces: Sequence[RankTrace], clock: Clock | None, base_ns: int, names: Names) -> tuple[Lane, ...]:
    """All lanes of a rank over its windows: annotations and streams of devices first, then threads, busiest first."""
    frames = [_of_window(trace, clock, base_ns, names) for trace in traces]
    events = pl.concat(frames) if frames else pl.DataFrame()
    if events.is_empty():
        return ()
    parts = [(str(key), str(title), part) for (key, title), part in events.group_by(["lane", "title"])]
    parts.sort(key=lambda item: _order(item[0], len(item[2])))
    return tuple(Lane(key, title, _rows(part)) for key, title, part in parts)


def _order(key: str, num_slices: int) -> tuple[int, int, list[int]]:
    """Ranges, then streams, then threads; the busiest first."""
    numbers = [int(number) for number in key.split(".")]
    return numbers[0], -num_slices, numbers[1:]


def _of_window(trace: RankTrace, clock: Clock | None, base_ns: int, names: Names) -> pl.DataFrame:
    events = trace.events(COLUMNS)
    start, end = _common(events, clock, base_ns)
    category = events["category"].cast(pl.String)
    on_device = category.is_in([*DEVICE, "gpu_annotation"])
    ranges = category == "gpu_annotation"
    stream = pl.format("stream {}", pl.coalesce("stream", "tid")).fill_null("other streams")
    several = events["device"].drop_nulls().n_unique() > 1
    device = pl.format("device {} ", pl.coalesce("device", "pid")).fill_null("") if several else pl.lit("")
    thread = pl.format("thread {}", pl.col("tid")).fill_null("other")
    place = pl.when(ranges).then(0).when(on_device).then(1).otherwise(2)
    title = pl.when(ranges).then(device + stream + " ranges").when(on_device).then(device + stream).otherwise(thread)
    number = pl.when(on_device).then(pl.coalesce("stream", "tid")).otherwise("tid")
    return events.select(
        lane=pl.format("{}.{}.{}", place, pl.col("pid").fill_null(-1), number.fill_null(-1)),
        title=title,
        start=pl.lit(pl.Series(start)),
        end=pl.lit(pl.Series(end)),
        number=pl.lit(pl.Series(names.numbers(events["name"]))),
        group=pl.lit(pl.Series(slice_groups(events, trace.patterns.collective_kind))),
        event=pl.col("index").cast(pl.Int64) + (trace.window << WINDOW_SHIFT),
    )


def _rows(part: pl.DataFrame) -> tuple[Row, ...]:
    part = part.sort("start", "end", descending=[False, True], maintain_order=True)
    start, end = part["start"].to_numpy(), part["end"].to_numpy()
    row_of = depths(start, end)
    name, group, event = (part[column].to_numpy() for column in ("number", "group", "event"))
    chosen = (np.flatnonzero(row_of == row) for row in range(int(row_of.max()) + 1))
    return tuple(Row(start[mine], end[mine], name[mine], group[mine], event[mine]) for mine in chosen)
