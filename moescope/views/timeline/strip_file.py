"""The strips of all ranks in one file that is mapped into memory: opening a timeline reads no event.

``MSS1``, header length (uint32), a JSON header, then little-endian arrays at multiples of 8 bytes from the header's
end: per rank its edges (int64), its classes (uint8), and its levels (uint32, [buckets, classes in use]).
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from moescope.attribution.timeline import Timeline as Pieces
from moescope.views.model import Analysis
from moescope.views.palette import group_of
from moescope.views.timeline.strips import CLASSES, Level, Strip, make_strip

MAGIC = b"MSS1"
ALIGN = 8


@dataclass(frozen=True, slots=True)
class Strips:
    """Every rank's strip; times are ns since ``base_ns`` on the common clock."""

    base_ns: int
    of_rank: Mapping[int, Strip]
    used: tuple[int, ...]
    """The classes that any rank spends time on, in order; the columns of every strip."""


def beginning_ns(analysis: Analysis) -> int:
    """When the first trace begins, on the common clock: the timeline's zero."""
    return min((source.start_ns for source in analysis.sources), default=0)


def make_strips(pieces: Mapping[int, Pieces], base_ns: int) -> Strips:
    """The strips of attributed ranks; ``base_ns``: no later than their first piece."""
    of_rank = {rank: _strip(line.pieces, base_ns) for rank, line in sorted(pieces.items())}
    used = tuple(sorted({kind for strip in of_rank.values() for kind in strip.used}))
    return Strips(base_ns, {rank: _only(strip, used) for rank, strip in of_rank.items()}, used)


def _only(strip: Strip, used: tuple[int, ...]) -> Strip:
    levels = tuple(Level(level.shift, np.ascontiguousarray(level.busy_ns[:, used])) for level in strip.levels)
    return Strip(strip.edges_ns, strip.class_of, levels, used)


def _strip(pieces: pl.DataFrame, base_ns: int) -> Strip:
    index = {key: number for number, key in enumerate(CLASSES)}
    numbers = {part: index[group_of(part).key] for part in pieces["part"].unique().to_list()}
    kinds = pieces["part"].replace_strict(numbers, return_dtype=pl.UInt8).to_numpy()
    end = np.maximum.accumulate(pieces["end_ns"].to_numpy() - base_ns)
    start = pieces["start_ns"].to_numpy() - base_ns
    start[1:] = np.maximum(start[1:], end[:-1])  # windows of a rank that overlap: the earlier one counts
    kept = end > start
    return make_strip(start[kept], end[kept], kinds[kept])


def save_strips(file: Path, strips: Strips) -> None:
    """Write beside, then rename; a folder that cannot be written costs only the speed of the next opening."""
    beside = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        beside.write_bytes(pack(strips))
        beside.replace(file)
    except OSError:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def load_strips(file: Path) -> Strips | None:
    """The stored strips, mapped; None where there are none or they are not ours."""
    try:
        with file.open("rb") as stream:
            content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        return unpack(content)
    except (OSError, ValueError, KeyError):
        return None


def pack(strips: Strips) -> bytes:
    """All strips as bytes."""
    blob: list[bytes] = []
    size = 0

    def add(array: npt.NDArray[Any], kind: str) -> int:
        nonlocal size
        place, raw = size, np.ascontiguousarray(array).astype(kind, copy=False).tobytes()
        padding = -len(raw) % ALIGN
        blob.extend((raw, b"\0" * padding))
        size += len(raw) + padding
        return place

    ranks = [
        {
            "rank": rank,
            "pieces": len(strip.class_of),
            "edges": add(strip.edges_ns, "<i8"),
            "classes": add(strip.class_of, "|u1"),
            "levels": [[one.shift, len(one.busy_ns), add(one.busy_ns, "<u4")] for one in strip.levels],
        }
        for rank, strip in strips.of_rank.items()
    ]
    head = json.dumps(
        {"base_ns": strips.base_ns, "used": [CLASSES[kind] for kind in strips.used], "ranks": ranks}
    ).encode()
    head += b" " * (-(len(MAGIC) + 4 + len(head)) % ALIGN)
    return b"".join((MAGIC, len(head).to_bytes(4, "little"), head, *blob))


def unpack(content: bytes | mmap.mmap) -> Strips:
    """The strips in ``content``, as views of it; ValueError where it holds none."""
    if content[:4] != MAGIC:
        raise ValueError("not a file of strips")
    length = int.from_bytes(content[4:8], "little")
    head, begin = json.loads(content[8 : 8 + length]), 8 + length
    used = tuple(CLASSES.index(key) for key in head["used"])

    def take(kind: str, count: int, place: int) -> npt.NDArray[Any]:
        return np.frombuffer(content, kind, count, begin + place)

    of_rank = {}
    for one in head["ranks"]:
        levels = (
            Level(shift, take("<u4", count * len(used), place).reshape(count, len(used)))
            for shift, count, place in one["levels"]
        )
        edges, kinds = take("<i8", one["pieces"] + 1, one["edges"]), take("|u1", one["pieces"], one["classes"])
        of_rank[int(one["rank"])] = Strip(edges, kinds, tuple(levels), used)
    return Strips(int(head["base_ns"]), of_rank, used)
