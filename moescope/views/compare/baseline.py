"""Two baselines, or two outputs of nccl-tests, side by side: which figure, rank, host, version or link changed."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moescope.align.baseline import load_document
from moescope.align.nccltests import is_nccl_tests, nccl_tests_document

CHANGED = 0.10
"""Relative change from which a figure is listed: repeated baselines of idle machines differ by less."""
_DEVICE = re.compile(r"(?:GPU|NIC|mlx\w*_)\d+")
LAGS = 1.15
"""A rank lags when its products take this many times the median rank's (of two the faster), in the median over them."""

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FigureChange:
    """One figure in both baselines; ``better`` says whether B's is the better one."""

    figure: str
    unit: str
    before: float
    after: float
    relative: float
    better: bool


@dataclass(frozen=True, slots=True)
class LaggingRank:
    """A rank whose products (or memory, or copies) take longer than the median rank's, before and after."""

    rank: int
    host: str
    before: float | None
    after: float
    what: str = "products"


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A version, setting, device or link that differs; None where one side lacks it."""

    where: str
    what: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class BaselineComparison:
    """``figures``: those that changed by at least CHANGED, worst first; ``num_figures``: those that both have."""

    before: str
    after: str
    num_figures: int
    figures: tuple[FigureChange, ...]
    lagging: tuple[LaggingRank, ...]
    settings: tuple[SettingChange, ...]
    wrong: tuple[str, ...]
    """Collectives of B that gave wrong numbers."""


def compare_baselines(before: Path, after: Path) -> BaselineComparison:
    """Compare two files of ``moescope baseline`` or of nccl-tests' output.

    Raises ``InputUnreadableError`` where one is neither.
    """
    a, b = _document(before), _document(after)
    figures = list(_changes(dict(_figures(a)), dict(_figures(b))))
    listed = [change for change in figures if abs(change.relative) >= CHANGED]
    return BaselineComparison(
        before=str(before),
        after=str(after),
        num_figures=len(figures),
        figures=tuple(sorted(listed, key=lambda change: (change.better, -abs(change.relative), change.figure))),
        lagging=tuple(_lagging(a, b)),
        settings=tuple(_settings(a, b)),
        wrong=tuple(f"{row['collective']} {row['size_bytes']} B" for row in b.get("collectives") or [] if row["wrong"]),
    )


def _document(file: Path) -> Document:
    return nccl_tests_document(file) if is_nccl_tests(file) else load_document(file)


Figures = Iterator[tuple[str, tuple[float, str, bool]]]
"""(name, (value, unit, more is better))."""


def _figures(document: Document) -> Figures:
    for row in document.get("gemm") or []:
        shape = f"{row['rows']} rows, {row['n']} x {row['k']}"
        groups = f" of {row['groups']}" if row["groups"] > 1 else ""
        yield f"{row['kind']}{groups} {row['dtype']}, {shape}", (row["rate_tflops"], "TFLOP/s", True)
    for row in document.get("collectives") or []:
        placed = "in place" if row["in_place"] else "out of place"
        yield f"{row['collective']} {row['size_bytes']} B {placed}", (row["busbw_gb_per_s"], "GB/s", True)
    if document.get("memory"):
        yield "memory", (document["memory"]["gb_per_s"], "GB/s", True)
    for row in document.get("copies") or []:
        yield f"{row['direction']} {row['size_bytes']} B", (row["gb_per_s"], "GB/s", True)
    if document.get("launch"):
        yield "launch", (document["launch"]["launch_ns"], "ns", False)
        yield "launch and wait", (document["launch"]["round_trip_ns"], "ns", False)


def _changes(
    before: Mapping[str, tuple[float, str, bool]], after: Mapping[str, tuple[float, str, bool]]
) -> Iterator[FigureChange]:
    for figure, (old, unit, more_is_better) in before.items():
        if figure in after and old > 0:
            new = after[figure][0]
            yield FigureChange(figure, unit, old, new, new / old - 1, (new > old) == more_is_better)


def _lagging(a: Document, b: Document) -> Iterator[LaggingRank]:
    hosts = {row["rank"]: str(row["host"]) for row in b.get("ranks") or []}
    was, now = _paces(a), _paces(b)
    for what, paces in now.items():
        for rank, pace in sorted(paces.items(), key=lambda item: -item[1]):
            if pace >= LAGS:
                yield LaggingRank(rank, hosts.get(rank, ""), was.get(what, {}).get(rank), pace, what)


def _paces(document: Document) -> dict[str, dict[int, float]]:
    """By what and rank, its time over the median rank's, in the median over the measurements."""
    measured: dict[str, list[list[float]]] = {
        "products": [row["by_rank_ns"] for row in document.get("gemm") or []],
        "memory": [_times(row) for row in [document.get("memory")] if row],
        "copies": [_times(row) for row in document.get("copies") or []],
    }
    return {what: _pace([row for row in rows if row]) for what, rows in measured.items()}


def _times(row: Mapping[str, Any]) -> list[float]:
    """Times of equal work by rank, from its rates."""
    return [1 / rate for rate in row.get("by_rank_gb_per_s") or [] if rate > 0]


def _pace(rows: Sequence[Sequence[float]]) -> dict[int, float]:
    ratios: dict[int, list[float]] = {}
    for times in rows:
        middle = statistics.median_low(times)
        for rank, time in enumerate(times):
            ratios.setdefault(rank, []).append(time / middle)
    return {rank: statistics.median(values) for rank, values in ratios.items()}


def _settings(a: Document, b: Document) -> Iterator[SettingChange]:
    for what in ("world_size", "backend", "device"):
        yield from _difference("all", what, a.get(what), b.get(what))
    hosts_a, hosts_b = ({str(host["host"]): host for host in d.get("hosts") or []} for d in (a, b))
    pairs = _paired(list(hosts_a), list(hosts_b))
    for old, new in pairs:
        if old is None or new is None:
            yield SettingChange("hosts", "host", old, new)
            continue
        flat_a, flat_b = dict(_flat(hosts_a[old])), dict(_flat(hosts_b[new]))
        for what in sorted({*flat_a, *flat_b}):
            yield from _difference(new, what, flat_a.get(what), flat_b.get(what))


def _paired(before: Sequence[str], after: Sequence[str]) -> list[tuple[str | None, str | None]]:
    """Hosts of the same name; of the rest, the only one of each side with the other, since it took its place."""
    both = [(host, host) for host in before if host in after]
    gone, new = [h for h in before if h not in after], [h for h in after if h not in before]
    if len(gone) == len(new) == 1:
        return [*both, (gone[0], new[0])]
    return [*both, *((host, None) for host in gone), *((None, host) for host in new)]


def _flat(host: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in host.items():
        if name == "topology" and isinstance(value, str) and (links := dict(topology_links(value))):
            yield from links.items()
        elif isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", one) for inner, one in value.items())
        else:
            yield name, value


def topology_links(text: str) -> Iterator[tuple[str, str]]:
    """(``link GPU0-GPU1``, its kind) of every pair in the matrix that ``nvidia-smi topo -m`` prints."""
    lines = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]
    head = next((cells for cells in lines if cells and _DEVICE.fullmatch(cells[0])), [])
    names = [cell for cell in head if _DEVICE.fullmatch(cell)]
    for row, cells in enumerate(cells for cells in lines if cells is not head and cells and cells[0] in names):
        for column, kind in enumerate(cells[1 : len(names) + 1]):
            if column > row:
                yield f"link {cells[0]}-{names[column]}", kind


def _difference(where: str, what: str, before: Any, after: Any) -> Iterator[SettingChange]:
    if before != after:
        old, new = (None if value is None else str(value) for value in (before, after))
        yield SettingChange(where, what, old, new)
