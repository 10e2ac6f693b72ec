"""A one-layer MoE job of two expert-parallel groups of two ranks, played by hand and written as tiny traces.

Every step a rank computes attention, dispatches, runs its experts, combines, and all ranks reduce gradients:
whoever is late makes its own group wait in the combine and, through the reduction, the other group too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tiny_rows import ROW_BYTES
from tiny_trace import TinyRank

GROUPS = ((0, 1), (2, 3))
WORLD = range(4)
ATTENTION_NS = 20_000
NS_PER_ROW = 1_000
REDUCTION_NS = 8_000
ALPHA_NS, NS_PER_BYTE = 4_000, 10
"""An exchange takes this and that times the bytes that the busiest rank sends to or receives from the other."""

Matrix = Sequence[Sequence[int]]
"""Rows from the i-th to the j-th member of a group."""


def balanced(step: int) -> tuple[Matrix, Matrix]:
    """Every rank receives as many rows, and a few more from step to step."""
    rows = [[10 + step, 10 + step], [10 + step, 10 + step]]
    return rows, rows


def play(
    steps: Sequence[tuple[Matrix, Matrix]],
    *,
    pace: Mapping[int, float] | None = None,
    stall_ns: Mapping[int, int] | None = None,
    copy_ns: Mapping[int, int] | None = None,
    begin_ns: Mapping[int, int] | None = None,
) -> list[TinyRank]:
    """Traces of the job. ``steps``: rows of both groups in each step.

    ``pace``: factors on a rank's expert time; ``stall_ns``: how late its host launches attention in every step;
    ``copy_ns``: an extra copy on its device; ``begin_ns``: how late its first step begins.
    """
    ranks = [TinyRank(rank, len(WORLD), host="node0") for rank in WORLD]
    ready = {rank: (begin_ns or {}).get(rank, 0) for rank in WORLD}
    for number, matrices in enumerate(steps):
        begin = dict(ready)
        launched = {rank: begin[rank] + (stall_ns or {}).get(rank, 0) for rank in WORLD}
        for rank in WORLD:
            if copied := (copy_ns or {}).get(rank, 0):
                ranks[rank].copy(ready[rank], copied, launched=begin[rank])
            start = max(ready[rank] + copied, launched[rank])
            launch(ranks[rank], "attention", launched[rank])
            ranks[rank].kernel("flash_fwd_kernel", start, ATTENTION_NS, launched=launched[rank])
            ready[rank] = start + ATTENTION_NS
        for group, rows in zip(GROUPS, matrices, strict=True):
            _layer([ranks[rank] for rank in group], rows, ready, launched, pace or {})
        end = max(ready.values()) + REDUCTION_NS
        for rank in WORLD:
            launch(ranks[rank], "grad_reduce", launched[rank] + 40)
            ranks[rank].reduce(ready[rank], end - ready[rank], launched=launched[rank] + 40)
            ranks[rank].step(number, begin[rank], end - begin[rank])
            ready[rank] = end
    return ranks


def launch(rank: TinyRank, phase: str, at: int) -> None:
    """The range in which the host launches the phase's work at ``at``."""
    rank.annotate(f"moescope::L0.mb0.{phase}" if phase != "grad_reduce" else "moescope::grad_reduce", at, 5)


def _layer(
    ranks: Sequence[TinyRank],
    rows: Matrix,
    ready: dict[int, int],
    launched: Mapping[int, int],
    pace: Mapping[int, float],
) -> None:
    back = [list(column) for column in zip(*rows, strict=True)]
    _exchange(ranks, rows, "dispatch", ready, {rank: at + 10 for rank, at in launched.items()})
    for member, rank in enumerate(ranks):
        dur = round(sum(back[member]) * NS_PER_ROW * pace.get(rank.rank, 1.0))
        launch(rank, "experts", launched[rank.rank] + 20)
        rank.kernel("nvjet_tst_64x64_TNT", ready[rank.rank], dur, launched=launched[rank.rank] + 20)
        ready[rank.rank] += dur
    _exchange(ranks, back, "combine", ready, {rank: at + 30 for rank, at in launched.items()})


def _exchange(
    ranks: Sequence[TinyRank], rows: Matrix, phase: str, ready: dict[int, int], launched: Mapping[int, int]
) -> None:
    group = [rank.rank for rank in ranks]
    remote = max(rows[0][1], rows[1][0]) * ROW_BYTES
    end = max(ready[rank] for rank in group) + ALPHA_NS + NS_PER_BYTE * remote
    for member, rank in enumerate(ranks):
        launch(rank, phase, launched[rank.rank])
        start = ready[rank.rank]
        received = [row[member] for row in rows]
        at = launched[rank.rank]
        rank.exchange(start, end - start, sent=rows[member], received=received, group=group, launched=at)
        ready[rank.rank] = end
