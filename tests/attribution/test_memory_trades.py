"""What recomputation and offloading save and cost, on tiny traces."""

from __future__ import annotations

from pathlib import Path

from tiny_trace import TinyRank, write

from moescope.attribution.memory_trades import LARGE_COPY_BYTES, MemoryTrade
from moescope.attribution.profile import profile_rank
from moescope.trace import open_directory

EVALUATE = "autograd::engine::evaluate_function: CheckpointFunctionBackward"
US = 1000


def trades(rank: TinyRank, folder: Path) -> tuple[MemoryTrade, ...]:
    return profile_rank(open_directory(write([rank], folder)).ranks[0]).memory_trades


def test_recomputation_saves_what_outlives_it(tmp_path: Path) -> None:
    """Of 300 and 50 bytes the second goes within the repeated work; 700 of the forward pass are no saving."""
    rank = TinyRank(0, 1)
    rank.step(0, 0, 200 * US)
    rank.memory(5 * US, 700, addr=1, total=700)
    rank.op(EVALUATE, 100 * US, 40 * US)
    rank.op("aten::linear", 101 * US, 20 * US)
    rank.memory(102 * US, 300, addr=2, total=1000)
    rank.memory(103 * US, 50, addr=3, total=1050)
    rank.memory(104 * US, -50, addr=3, total=1000)
    rank.memory(150 * US, -300, addr=2, total=700)
    rank.kernel("gemm", 120 * US, 12 * US, launched=105 * US)
    assert trades(rank, tmp_path) == (MemoryTrade("recompute", 300, 12 * US, 1),)


def test_offloading_saves_what_goes_and_comes_back(tmp_path: Path) -> None:
    rank = TinyRank(0, 1)
    rank.step(0, 0, 300 * US)
    size = LARGE_COPY_BYTES
    rank.copy(10 * US, 20 * US, launched=5 * US, name="Memcpy DtoH (Device -> Pinned)", size=size)
    rank.copy(40 * US, 20 * US, launched=35 * US, name="Memcpy DtoH (Device -> Pinned)", size=2 * size)
    rank.copy(100 * US, 25 * US, launched=95 * US, name="Memcpy HtoD (Pinned -> Device)", size=size)
    rank.copy(200 * US, 5 * US, launched=195 * US, name="Memcpy DtoH (Device -> Pageable)", size=8)
    rank.copy(220 * US, 5 * US, launched=215 * US, name="Memcpy HtoD (Pageable -> Device)", size=8)
    assert trades(rank, tmp_path) == (MemoryTrade("offload", size, 75 * US, 1),)


def test_neither_is_seen_in_a_plain_step(tmp_path: Path) -> None:
    rank = TinyRank(0, 1)
    rank.step(0, 0, 100 * US)
    rank.memory(5 * US, 700, addr=1, total=700)
    rank.kernel("gemm", 10 * US, 12 * US, launched=5 * US)
    assert trades(rank, tmp_path) == ()
