"""Memory for blocks of text."""

from __future__ import annotations

import mmap
import sys
from contextlib import suppress

_LARGE_PAGE = 2 << 20


def fresh(size: int) -> memoryview:
    """At least ``size`` bytes to write to, of large pages where the system has them and they are worth it: one costs a
    third of the small ones in its place."""
    if size < _LARGE_PAGE // 2:
        return memoryview(bytearray(size))
    size = -(-size // _LARGE_PAGE) * _LARGE_PAGE
    if sys.platform != "linux":
        return memoryview(mmap.mmap(-1, size))
    pages = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them
        pages.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(pages)
