"""Raw columns -> the tables of the contract: base time, categories, kinds, order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import polars as pl

from moescope.trace.faults import Faults
from moescope.trace.model import CATEGORIES, DEVICE_CATEGORIES, EVENT_SCHEMA, KINDS, CategoryType, KindType
from moescope.trace.patterns import Patterns
from moescope.trace.raw import Coded, Codes, IntArray, Mask
from moescope.trace.records import ABSENT, NO_NUMBER
from moescope.trace.scan import Scan

_DEVICE_LABEL = re.compile(r"\s*[NGXH]PU\s*(\d{1,6})\s*\Z")
_CATEGORIES = pl.Series(CATEGORIES, dtype=CategoryType)
_KINDS = pl.Series([*KINDS, None], dtype=KindType)
_STEP = "ProfilerStep#"
_INT32 = np.iinfo(np.int32)
_NO_KIND = len(KINDS)
_NO_CATEGORY = len(CATEGORIES)


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of the table of events as arrays; at most NO_NUMBER where there is no number."""

    index: npt.NDArray[np.uint32]
    start_ns: IntArray
    dur_ns: IntArray
    device: IntArray
    correlation: IntArray
    category: Codes

    def are_in(self, *categories: str) -> Mask:
        """For each row whether it is of one of the ``categories``."""
        return _is_one_of(categories, self.category)

    def only(self, rows: Mask) -> Columns:
        """Those of ``rows``."""
        return Columns(*(getattr(self, column.name)[rows] for column in fields(self)))


@dataclass(frozen=True, slots=True)
class Tables:
    """The finished tables of one file, times absolute."""

    events: pl.DataFrame
    comm: pl.DataFrame
    memory: pl.DataFrame
    columns: Columns
    """Of ``events``."""
    parallel_steps: int
    """The most processes that run the same profiler step."""


def finish(found: Scan, base_ns: int, patterns: Patterns) -> Tables:
    """The contract's tables; ``base_ns`` is what the file's times count from. Takes the events out of ``found``."""
    words, numbers = found.events.words, found.events.numbers
    category = _categories(found, words.pop("recorded"), patterns)
    steps = _parallel_steps(words["name"], category, numbers["pid"])
    with ThreadPoolExecutor(1) as pool:
        texts = pool.submit(lambda: {name: column.series() for name, column in words.items()})
        kind = _kinds(words["name"], category, patterns)
        _take_of_device(numbers, np.flatnonzero(_is_one_of(DEVICE_CATEGORIES, category)), found.labels)
        numbers["start_ns"] = numbers.pop("ts_ns")
        numbers["start_ns"] += base_ns
        start, duration, device, correlation = (
            numbers[name] for name in ("start_ns", "dur_ns", "device", "correlation")
        )
        columns = Columns(found.events.index, start, duration, device, correlation, category)
        series = _series(numbers) | {
            "index": pl.Series(columns.index),
            "category": _CATEGORIES.gather(pl.Series(category)),
            "kind": _KINDS.gather(pl.Series(kind)),
        }
        series |= texts.result()
    events = pl.DataFrame({name: series[name] for name in EVENT_SCHEMA})
    return Tables(events, found.comm, _memory(found, base_ns), columns, steps)


def _series(numbers: dict[str, IntArray]) -> dict[str, pl.Series]:
    """The columns of numbers, with null where there is none; takes them out of ``numbers``."""
    series = {}
    for name in list(numbers):
        values = numbers.pop(name)
        known = values > NO_NUMBER
        column = pl.Series(values.astype(np.int32) if EVENT_SCHEMA[name] == pl.Int32 else values)
        none = pl.Series([None], dtype=column.dtype)
        series[name] = column if known.all() else column.zip_with(pl.Series(known), none)
    return series


def _memory(found: Scan, base_ns: int) -> pl.DataFrame:
    if found.memory.is_empty():
        return found.memory
    memory = found.memory.drop_nulls("ts_ns").with_columns(pl.col("ts_ns") + base_ns)
    if lost := found.memory.height - memory.height:
        found.faults.note("bad-memory", count=lost)
    return memory.sort("ts_ns", maintain_order=True)


def _parallel_steps(names: Coded, category: Codes, process: IntArray) -> int:
    """The most processes that run the same profiler step."""
    steps = [place for place, word in enumerate(names.words) if word is not None and word.startswith(_STEP)]
    if not steps:
        return 0
    rows = np.flatnonzero(_is_one_of(("annotation",), category))
    rows = rows[np.isin(names.places[rows], steps)]
    known = np.maximum(process[rows], NO_NUMBER)  # all without a number are one
    runs = np.unique(np.stack([names.places[rows].astype(np.int64), known]), axis=1)
    _, processes = np.unique(runs[0], return_counts=True)
    return int(processes.max(initial=0))


def _take_of_device(numbers: dict[str, IntArray], rows: npt.NDArray[np.intp], labels: dict[str, str]) -> None:
    """Leave device and bytes to the device events, at ``rows``; those without a device or a stream take what stands for
    it in older traces: process and thread."""
    device, stream, num_bytes, process, thread = (
        numbers[name][rows] for name in ("device", "stream", "bytes", "pid", "tid")
    )
    device = np.where(device > NO_NUMBER, device, _device_of_process(process, labels))
    device[(device < _INT32.min) | (device > _INT32.max)] = ABSENT
    for name in ("device", "bytes"):
        numbers[name][:] = ABSENT
    numbers["device"][rows] = device
    numbers["stream"][rows] = np.where(stream > NO_NUMBER, stream, thread)
    numbers["bytes"][rows] = num_bytes


def _categories(found: Scan, recorded: Coded, patterns: Patterns) -> Codes:
    """Category of each event, from its own or from the name of its process; notes those whose own is unknown."""
    category = recorded.each(lambda text: CATEGORIES.index(patterns.category(text)), CATEGORIES.index("other"))
    unknown = recorded.each(lambda text: int(text in patterns.categories), 0) == 0
    if not unknown.any():
        return category
    for process, title in _by_pid(found.labels, "process_name"):
        rows = np.flatnonzero(unknown & (found.events.numbers["pid"] == process))

        def of_event(name: str, title: str = title) -> int:
            told = patterns.process_category(title, name)
            return _NO_CATEGORY if told is None else CATEGORIES.index(told)

        codes = found.events.words["name"].each(of_event, _NO_CATEGORY, rows)
        told = rows[codes != _NO_CATEGORY]
        category[told], unknown[told] = codes[codes != _NO_CATEGORY], False
    if unknown.any():
        places = recorded.places[unknown]
        names = ["none"] * bool((places == 0).any()) + [str(recorded.words[p]) for p in recorded.present(places)]
        found.faults.note("unknown-category", count=int(unknown.sum()), detail=", ".join(sorted(names)[:5]))
    return category


def _by_pid(labels: dict[str, str], what: str) -> Iterator[tuple[int, str]]:
    for key, text in labels.items():
        kind, _, process = key.rpartition(" ")
        if kind == what and process.lstrip("-").isdecimal() and int(process) > NO_NUMBER:
            yield int(process), text


def _device_of_process(pid: IntArray, labels: dict[str, str]) -> IntArray:
    """The device that the label of each event's process names (``NPU 3``), else the process's own number."""
    named = {pid: int(m[1]) for pid, text in _by_pid(labels, "process_labels") if (m := _DEVICE_LABEL.match(text))}
    if not named:
        return pid
    processes = np.array(sorted(named), np.int64)
    place = np.minimum(np.searchsorted(processes, pid), len(processes) - 1)
    devices = np.array([named[process] for process in processes.tolist()], np.int64)
    return np.where(processes[place] == pid, devices[place], pid)


def _kinds(names: Coded, category: Codes, patterns: Patterns) -> Codes:
    """Index into ``KINDS`` of each event, ``_NO_KIND`` where it has none."""

    def of_range(name: str) -> int:
        found = patterns.range_kind(name)
        return _NO_KIND if found is None else KINDS.index(found)

    kind = np.full(len(category), _NO_KIND, dtype=np.uint8)
    kind[_is_one_of(("copy", "memset"), category)] = KINDS.index("copy")
    for categories, code in (
        (("kernel",), lambda name: KINDS.index(patterns.kernel_kind(name))),
        (("annotation", "cpu_op"), of_range),
    ):
        rows = np.flatnonzero(_is_one_of(categories, category))
        kind[rows] = names.each(code, _NO_KIND, rows)
    return kind


def _is_one_of(categories: Sequence[str], category: Codes) -> Mask:
    """For each code of a category whether it is one of ``categories``."""
    mask: Mask = np.array([name in categories for name in CATEGORIES]).take(category)
    return mask


def note_launches(events: Columns, faults: Faults) -> None:
    """Note device events that start before the call that launched them; remark those without a launch.

    ``events`` are in the order of time.
    """
    is_linked, on_device = events.correlation > NO_NUMBER, events.are_in(*DEVICE_CATEGORIES)
    calls = np.flatnonzero(is_linked & events.are_in("runtime"))
    ids, first = np.unique(events.correlation[calls], return_index=True)
    if not len(ids):
        return
    launched = np.flatnonzero(is_linked & on_device)
    wanted = events.correlation[launched]
    place = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    has_launch = ids[place] == wanted
    early = launched[has_launch & (events.start_ns[launched] < events.start_ns[calls[first[place]]])]
    if len(early):
        faults.note("early-kernels", f"event {int(events.index[early].min()):,}", len(early))
    num_on_device = int(on_device.sum())
    unlinked = num_on_device - int(has_launch.sum())
    if unlinked:
        faults.remarks.append(
            f"{unlinked:,} of {num_on_device:,} device events have no launch in the trace: they count, but idle time "
            "before them cannot be charged to a late launch"
        )
