"""Raw columns -> the tables of the contract: base time, categories, kinds, order."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from moescope.trace.faults import Faults
from moescope.trace.model import CATEGORIES, DEVICE_CATEGORIES, EVENT_SCHEMA, KINDS, CategoryType, KindType
from moescope.trace.patterns import Patterns
from moescope.trace.scan import Scan

_DEVICE_LABEL = re.compile(r"\s*[NGXH]PU\s*(\d{1,6})\s*\Z")
_CATEGORIES = pl.Series(CATEGORIES, dtype=CategoryType)
_KINDS = pl.Series([*KINDS, None], dtype=KindType)
_NO_KIND = len(KINDS)
_NO_CATEGORY = len(CATEGORIES)

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
    _take_from_processes(raw, category, found, patterns)
    kind = _kinds(raw["name"], category, patterns)
    mask = pl.lit(pl.Series(_one_of(DEVICE_CATEGORIES)[category]))
    device = pl.coalesce("device", _device_of_process(found.labels))
    events = raw.lazy().with_columns(
        start_ns=pl.col("ts_ns") + base_ns,
        category=pl.lit(_CATEGORIES[pl.Series(category)]),
        kind=pl.lit(_KINDS[pl.Series(kind)]),
        device=pl.when(mask).then(device).cast(pl.Int32, strict=False),
        stream=pl.when(mask).then(pl.coalesce("stream", "tid")).otherwise("stream"),
        bytes=pl.when(mask).then("bytes"),
    )
    del raw
    memory = found.memory.drop_nulls("ts_ns").with_columns(pl.col("ts_ns") + base_ns)
    if lost := found.memory.height - memory.height:
        found.faults.note("bad-memory", count=lost)
    return Tables(
        events.select(list(EVENT_SCHEMA)).collect(),
        found.comm,
        memory.sort("ts_ns", maintain_order=True),
    )


def _codes(words: pl.Series, code: Callable[[str], int], default: int) -> Codes:
    """``code`` of each of ``words``, a Categorical, called once for each different word; ``default`` for null."""
    physical = words.to_physical()
    no_word = int(physical.max() or 0) + 1  # type: ignore[arg-type]  # places in a Categorical are integers
    places = physical.fill_null(no_word).to_numpy()
    row = np.full(no_word + 1, -1)
    row[places] = np.arange(len(places))  # one that has the word
    row[no_word] = -1
    known = np.flatnonzero(row >= 0)
    table = np.full(no_word + 1, default, dtype=np.uint8)
    table[known] = [code(word) for word in words.gather(row[known]).cast(pl.String)]
    codes: Codes = table[places]
    return codes


def _take_from_processes(raw: pl.DataFrame, category: Codes, found: Scan, patterns: Patterns) -> None:
    """Set ``category`` of events whose own is unknown from the name of their process; note those that stay unknown."""
    unknown = _codes(raw["recorded"], lambda text: int(text in patterns.categories), 0) == 0
    if not unknown.any():
        return
    for process, title in _by_pid(found.labels, "process_name"):
        rows = np.flatnonzero(unknown & (raw["pid"] == process).fill_null(False).to_numpy())

        def of_event(name: str, title: str = title) -> int:
            told = patterns.process_category(title, name)
            return _NO_CATEGORY if told is None else CATEGORIES.index(told)

        codes = _codes(raw["name"][pl.Series(rows)], of_event, _NO_CATEGORY)
        told = rows[codes != _NO_CATEGORY]
        category[told], unknown[told] = codes[codes != _NO_CATEGORY], False
    if unknown.any():
        names = raw["recorded"].filter(pl.Series(unknown)).unique().cast(pl.String).fill_null("none")
        found.faults.note("unknown-category", count=int(unknown.sum()), detail=", ".join(names.sort()[:5]))


def _by_pid(labels: dict[str, str], what: str) -> Iterator[tuple[int, str]]:
    for key, text in labels.items():
        kind, _, process = key.rpartition(" ")
        if kind == what and process.lstrip("-").isdecimal():
            yield int(process), text


def _device_of_process(labels: dict[str, str]) -> pl.Expr:
    """The device that a process's label names (``NPU 3``), else the process's own number."""
    named = {pid: int(m[1]) for pid, text in _by_pid(labels, "process_labels") if (m := _DEVICE_LABEL.match(text))}
    return pl.col("pid").replace_strict(named, default=pl.col("pid"), return_dtype=pl.Int64) if named else pl.col("pid")


def _kinds(names: pl.Series, category: Codes, patterns: Patterns) -> Codes:
    """Index into ``KINDS`` of each event, ``_NO_KIND`` where it has none."""

    def of_range(name: str) -> int:
        found = patterns.range_kind(name)
        return _NO_KIND if found is None else KINDS.index(found)

    kind = np.full(len(names), _NO_KIND, dtype=np.uint8)
    kind[_one_of(("copy", "memset"))[category]] = KINDS.index("copy")
    for categories, code in (
        (("kernel",), lambda name: KINDS.index(patterns.kernel_kind(name))),
        (("annotation", "cpu_op"), of_range),
    ):
        rows = np.flatnonzero(_one_of(categories)[category])
        kind[rows] = _codes(names[pl.Series(rows)], code, _NO_KIND)
    return kind


def _one_of(categories: Sequence[str]) -> npt.NDArray[np.bool_]:
    """For each category's code whether it is one of ``categories``."""
    return np.array([name in categories for name in CATEGORIES])


def note_launches(events: pl.DataFrame, faults: Faults) -> None:
    """Note device events that start before the call that launched them; remark those without a launch.

    ``events`` are in the order of time.
    """
    events = events.select("index", "start_ns", "category", "correlation")
    calls = events.filter(pl.col("category") == "runtime", pl.col("correlation").is_not_null())
    device = events.filter(pl.col("category").is_in(DEVICE_CATEGORIES))
    ids, first = np.unique(calls["correlation"].to_numpy(), return_index=True)
    if not len(ids):
        return
    launched = device.filter(pl.col("correlation").is_not_null())
    wanted = launched["correlation"].to_numpy()
    place = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    has_launch = ids[place] == wanted
    launch_ns = calls["start_ns"].to_numpy()[first[place]]
    early = launched.filter(pl.Series(has_launch & (launched["start_ns"].to_numpy() < launch_ns)))
    if early.height:
        faults.note("early-kernels", _first(early), early.height)
    unlinked = device.height - int(has_launch.sum())
    if unlinked:
        faults.remarks.append(
            f"{unlinked:,} of {device.height:,} device events have no launch in the trace: they count, but idle time "
            "before them cannot be charged to a late launch"
        )


def _first(events: pl.DataFrame) -> str:
    return f"event {int(events['index'].to_numpy().min()):,}"
