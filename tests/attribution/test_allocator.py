"""Calls of the driver's allocator, and which of them are retries."""

from __future__ import annotations

from pathlib import Path

from tiny_trace import TinyRank, write

from moescope.attribution.allocator import AllocatorCalls
from moescope.attribution.profile import profile_rank
from moescope.trace import open_directory

US = 1000


def calls(rank: TinyRank, folder: Path) -> AllocatorCalls:
    return profile_rank(open_directory(write([rank], folder)).ranks[0]).allocator


def test_calls_and_retries_inside_the_steps(tmp_path: Path) -> None:
    """A plain request; a retry of two frees and a request; a free alone; one more request after the steps."""
    rank = TinyRank(0, 1)
    rank.step(0, 0, 50 * US)
    rank.step(1, 50 * US, 50 * US)
    rank.kernel("work", 90 * US, 10 * US, launched=89 * US)
    for at, name in enumerate(("cudaMalloc", "cudaMalloc", "cudaFree", "cudaFree", "cudaMalloc", "cudaFree")):
        rank.call(name, (10 + 10 * at) * US, 2 * US)
    rank.call("cudaMalloc", 500 * US, 2 * US)
    found = calls(rank, tmp_path)
    assert found == AllocatorCalls({"cudaFree": (3, 6 * US), "cudaMalloc": (3, 6 * US)}, 1, 2)


def test_a_step_without_such_calls(tmp_path: Path) -> None:
    rank = TinyRank(0, 1)
    rank.step(0, 0, 50 * US)
    rank.kernel("work", 0, 10 * US, launched=0)
    assert calls(rank, tmp_path) == AllocatorCalls({}, 0, 1)
