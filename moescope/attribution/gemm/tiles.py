"""How a product is cut into tiles: the tile's size from the kernel's name, else the usual one of the device."""

from __future__ import annotations

import re
from collections.abc import Mapping

from moescope.trace import RankTrace

PATTERNS = (
    re.compile(r"_MT(\d+)x(\d+)x\d+"),
    re.compile(r"nvjet_[a-z]+_(\d+)x(\d+)_"),
    re.compile(r"(?:^|_)(?:gemm|cublas|cutlass|xmma|s\d+816)\w*?_(\d{2,3})x(\d{2,3})(?:_|x)"),
    re.compile(r"_tilesize(\d+)x(\d+)x\d+"),
)
"""Tile dimensions in names of hipBLASLt (``Cijk_..._MT64x16x256``), cuBLAS (``nvjet_tst_192x192_...``), CUTLASS."""

DEFAULT_TILE = (128, 128)


def tile_of(kernel: str) -> tuple[int, int]:
    """Rows and columns of the tile; the usual 128 x 128 where the name does not say."""
    for pattern in PATTERNS:
        if found := pattern.search(kernel):
            return int(found[1]), int(found[2])
    return DEFAULT_TILE


def num_multiprocessors(trace: RankTrace) -> int | None:
    """Multiprocessors (compute units) of the rank's device, None where the trace does not say."""
    properties = trace.info.get("deviceProperties")
    entries = [entry for entry in properties if isinstance(entry, Mapping)] if isinstance(properties, list) else []
    counts = [entry.get("numSms") or entry.get("multiProcessorCount") for entry in entries]
    return next((count for count in counts if isinstance(count, int) and count > 0), None)
