"""The timeline as it is embedded: tiles for every zoom, as many as fit, and what was left out in words."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from moescope.views.text import duration, plural, ranges
from moescope.views.timeline import Timeline

OVERVIEW_BUCKETS = 2048
FINER_BY = 3
"""Powers of two between one level of the strips and the next."""
MOST_CELLS = 24_000_000
"""Cells of a level, which the page holds unpacked."""
STRIPS_SHARE, LINKS_SHARE = 0.35, 0.15
ROW_SHIFTS = (0, 10, 12, 14, 16, 18, 20)
"""Slices shorter than ``2**shift`` ns are counted: none, then those under 1 µs, 4 µs, ..."""
MOST_LINKS = 2000
LEAST_BYTES = 20_000
FRAME_BYTES = 150
"""Of the names and brackets around the parts."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """What the page's script reads, and what is not in it."""

    parts: dict[str, Any]
    cuts: tuple[str, ...]


def embed_timeline(timeline: Timeline, budget_bytes: int, first: Sequence[int] = ()) -> Embedded | None:
    """Everything of ``timeline`` that fits into ``budget_bytes``; None where not even an overview does.

    The slices of the ranks in ``first`` come before those of the others.
    """
    if budget_bytes < LEAST_BYTES or not timeline.ranks:
        return None
    meta = timeline.meta()
    cuts: list[str] = []
    left = budget_bytes - _size(meta) - FRAME_BYTES
    strips, finest_shift = _strips(timeline, int(left * STRIPS_SHARE))
    if not strips:
        return None
    left -= sum(len(one) + 3 for one in strips)
    links = _links(timeline, int(left * LINKS_SHARE), cuts)
    left -= _size(links)
    rows, left = _rows(timeline, left, [*first, *timeline.ranks], cuts)
    if finest_shift:
        cuts.append(f"the parts of the step are drawn to {duration(1 << finest_shift)}, not finer.")
    microbatches = timeline.microbatches()["microbatches"]
    parts = {"meta": meta, "strips": strips, "rows": rows, "collectives": links,
             "microbatches": microbatches if _size(microbatches) <= left else []}  # fmt: skip
    return Embedded(parts, tuple(cuts))


def _strips(timeline: Timeline, most_bytes: int) -> tuple[list[str], int]:
    """Levels of all ranks' strips from fine to coarse, and the finest's shift; the overview first if room is short."""
    shift = max(0, (timeline.length_ns // OVERVIEW_BUCKETS).bit_length())
    levels: list[str] = []
    finest = shift
    while True:
        cells = ((timeline.length_ns >> shift) + 1) * len(timeline.ranks) * len(timeline.meta()["classes"])
        packed = _packed(_tile(timeline, shift, timeline.ranks, ())) if cells <= MOST_CELLS else None
        if packed is None or sum(map(len, levels)) + len(packed) > most_bytes:
            return levels, finest
        levels.insert(0, packed)
        finest = shift
        if shift == 0:
            return levels, finest
        shift = max(0, shift - FINER_BY)


def _links(timeline: Timeline, most_bytes: int, cuts: list[str]) -> list[dict[str, Any]]:
    """The collectives with the longest waits."""
    whole = timeline.exchanges.between(0, timeline.length_ns, 0, MOST_LINKS)
    kept, size = [], 0
    for one in whole:
        size += _size(one) + 1
        if size > most_bytes:
            break
        kept.append(one)
    if len(kept) < len(whole):
        cuts.append(f"of the collectives with waits, the {len(kept)} with the longest are in this file.")
    return kept


def _rows(timeline: Timeline, left: int, order: Iterable[int], cuts: list[str]) -> tuple[list[dict[str, Any]], int]:
    """The slices of as many ranks as fit, each as fine as fits into half of what is left."""
    rows: list[dict[str, Any]] = []
    counted: dict[int, list[int]] = {}
    ranks = list(dict.fromkeys(rank for rank in order if rank in timeline.ranks))
    finest = 0  # room only shrinks, so what was too fine for one rank is not tried for the next
    for rank in ranks:
        lanes = timeline.lanes_meta(rank)["lanes"]
        addresses = [(rank, lane["key"], row) for lane in lanes for row in range(lane["rows"])]
        room = left if rank == ranks[-1] else left // 2
        for index in range(finest, len(ROW_SHIFTS)):
            shift = ROW_SHIFTS[index]
            data = _packed(_tile(timeline, shift, (), addresses))
            entry = {"rank": rank, "lanes": lanes, "data": data}
            if _size(entry) + 1 <= room:
                rows.append(entry)
                left -= _size(entry) + 1
                finest = index
                counted.setdefault(shift, []).append(rank)
                break
        else:
            break
    for shift, some in counted.items():
        if shift:
            cuts.append(f"slices of ranks {ranges(some)} shorter than {duration(1 << shift)} are counted, not listed.")
    if len(rows) < len(ranks):
        absent = sorted(set(ranks) - {row["rank"] for row in rows})
        cuts.append(f"the slices of {plural(len(absent), 'rank')} ({ranges(absent)}) are left out.")
    return rows, left


def _tile(timeline: Timeline, shift: int, strips: Sequence[int], rows: Sequence[tuple[int, str, int]]) -> bytes:
    return timeline.tile(0, (timeline.length_ns >> shift) + 1, shift, strips, rows)


def _packed(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


def _size(value: object) -> int:
    return len(json.dumps(value, separators=(",", ":")))
