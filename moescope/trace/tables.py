"""Raw columns -> the tables of the contract: base time, categories, kinds, order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from moescope.trace.faults import Faults
from moescope.trace.model import CATEGORIES, DEVICE_CATEGORIES, EVENT_SCHEMA, KINDS, CategoryType, KindType
from moescope.trace.patterns import Patterns
from moescope.trace.scan import Scan

_RANGE_CATEGORIES = ("annotation", "cpu_op")
_NONE = 255
Codes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Tables:
    """The finished tables of one file, times absolute."""

    events: pl.DataFrame
    comm: pl.DataFrame
    memory: pl.DataFrame


def finish(found: Scan, base_ns: int, patterns: Patterns) -> Tables:
    """The contract's tables; ``base_ns`` is what the file's times count from. Takes the events out of ``found``."""
    raw, found.events = found.events, found.events.clear()
    category = _codes(
        raw["recorded"], lambda text: CATEGORIES.index(patterns.category(text)), CATEGORIES.index("other")
    )
    _note_unknown(raw["recorded"], patterns, found.faults)
    kind = _kinds(raw["name"], category, patterns)
    on_device = np.isin(category, [CATEGORIES.index(name) for name in DEVICE_CATEGORIES])
    device, mask = pl.col("device"), pl.lit(pl.Series(on_device))
    events = raw.lazy().with_columns(
        start_ns=pl.col("ts_ns") + base_ns,
        category=pl.lit(pl.Series(category).cat.to(CategoryType)),
        kind=pl.lit(pl.Series(kind).replace(_NONE, None).cat.to(KindType)),
        device=pl.when(mask).then(pl.coalesce(device, "pid")).cast(pl.Int32, strict=False),
        stream=pl.when(mask).then(pl.coalesce("stream", "tid")).otherwise("stream"),
        bytes=pl.when(mask).then("bytes"),
    )
    del raw
    memory = found.memory.drop_nulls("ts_ns").with_columns(pl.col("ts_ns") + base_ns)
    if lost := found.memory.height - memory.height:
        found.faults.note("bad-memory", count=lost)
    return Tables(
        events.select(list(EVENT_SCHEMA)).sort("start_ns", maintain_order=True).collect(),
        found.comm,
        memory.sort("ts_ns", maintain_order=True),
    )


def _codes(words: pl.Series, code: Callable[[str], int], default: int) -> Codes:
    """``code`` of each of ``words``, a Categorical, called once for each different word; ``default`` for null."""
    different = words.unique().drop_nulls()
    physical = different.to_physical().to_numpy()
    table = np.full(int(physical.max(initial=0)) + 2, default, dtype=np.uint8)
    table[physical] = [code(word) for word in different.cast(pl.String)]
    codes: Codes = table[words.to_physical().fill_null(len(table) - 1).to_numpy()]
    return codes


def _kinds(names: pl.Series, category: Codes, patterns: Patterns) -> Codes:
    """Index into ``KINDS`` of each event, ``_NONE`` where it has none."""
    kind = np.full(len(names), _NONE, dtype=np.uint8)
    kernel = np.flatnonzero(category == CATEGORIES.index("kernel"))
    kind[kernel] = _codes(names.gather(kernel), lambda name: KINDS.index(patterns.kernel_kind(name)), _NONE)
    kind[np.isin(category, [CATEGORIES.index("copy"), CATEGORIES.index("memset")])] = KINDS.index("copy")
    ranges = np.flatnonzero(np.isin(category, [CATEGORIES.index(name) for name in _RANGE_CATEGORIES]))

    def of_range(name: str) -> int:
        found = patterns.range_kind(name)
        return _NONE if found is None else KINDS.index(found)

    kind[ranges] = _codes(names.gather(ranges), of_range, _NONE)
    return kind


def _note_unknown(recorded: pl.Series, patterns: Patterns, faults: Faults) -> None:
    counts = recorded.value_counts().drop_nulls().cast({"recorded": pl.String})
    unknown = {text: count for text, count in counts.iter_rows() if text not in patterns.categories}
    if unknown:
        faults.note("unknown-category", count=sum(unknown.values()), detail=", ".join(sorted(unknown)[:5]))


def note_launches(events: pl.DataFrame, faults: Faults) -> None:
    """Note device events that start before the call that launched them; remark those without a launch."""
    calls = events.filter(pl.col("category") == "runtime", pl.col("correlation").is_not_null())
    launch = calls.group_by("correlation").agg(launch_ns=pl.col("start_ns").min())
    device = events.filter(pl.col("category").is_in(DEVICE_CATEGORIES)).select("index", "start_ns", "correlation")
    device = device.join(launch, on="correlation", how="left")
    early = device.filter(pl.col("start_ns") < pl.col("launch_ns"))
    if early.height:
        faults.note("early-kernels", _first(early), early.height)
    unlinked = device["launch_ns"].null_count()
    if launch.height and unlinked:
        faults.remarks.append(
            f"{unlinked:,} of {device.height:,} device events have no launch in the trace: they count, but idle time "
            "before them cannot be charged to a late launch"
        )


def _first(events: pl.DataFrame) -> str:
    return f"event {int(events['index'].to_numpy().min()):,}"
