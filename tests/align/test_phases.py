"""Layers and phases told from splits alone: combine is dispatch transposed, and backward repeats both in reverse."""

from __future__ import annotations

import polars as pl
from tiny_rows import exchange, reduction, table

from moescope.align.phases import infer_phases

Matrix = list[list[int]]
FIRST: Matrix = [[3, 5], [2, 4]]
SECOND: Matrix = [[7, 1], [6, 2]]


def back(matrix: Matrix) -> Matrix:
    return [list(column) for column in zip(*matrix, strict=True)]


def phases(*matrices: Matrix, step: int = 0) -> list[str]:
    """``layer.phase[.bwd]`` of a rank's exchanges in order."""
    rows = []
    for turn, matrix in enumerate(matrices):
        rows += [
            row | {"instance": turn, "step": step}
            for row in exchange({0: 10 * turn, 1: 10 * turn}, 10 * turn + 5, matrix)
        ]
    frame = table(rows).with_columns(instance=pl.Series([row["instance"] for row in rows]))
    got = infer_phases(frame)
    assert got["inferred"].to_list() == got["layer"].is_not_null().to_list()
    names = pl.col("layer", "phase", "backward")
    by_rank = [
        part.select(names).rows() for _, part in got.sort("rank", "start_ns").group_by("rank", maintain_order=True)
    ]
    assert by_rank[0] == by_rank[1]
    found = by_rank[0]
    return [f"{layer}.{phase}{'.bwd' * bool(backward)}" for layer, phase, backward in found]


def test_forward_only() -> None:
    assert phases(FIRST, back(FIRST), SECOND, back(SECOND)) == ["0.dispatch", "0.combine", "1.dispatch", "1.combine"]


def test_forward_and_backward() -> None:
    """The backward pass undoes the last layer first: a combine's backward sends what the dispatch sent."""
    forward = [FIRST, back(FIRST), SECOND, back(SECOND)]
    assert phases(*forward, SECOND, back(SECOND), FIRST, back(FIRST)) == [
        "0.dispatch", "0.combine", "1.dispatch", "1.combine",
        "1.combine.bwd", "1.dispatch.bwd", "0.combine.bwd", "0.dispatch.bwd",
    ]  # fmt: skip


def test_even_splits_tell_nothing() -> None:
    """With as many rows to every peer as from it, a combine looks like a dispatch and every layer like the next."""
    even = [[4, 4], [4, 4]]
    assert phases(even, even, even, even) == ["None.None"] * 4
    assert phases(even, FIRST, back(FIRST)) == ["None.None", "0.dispatch", "0.combine"]


def test_what_was_recorded_is_kept() -> None:
    rows = [row | {"layer": 7, "phase": "dispatch", "backward": False} for row in exchange({0: 0, 1: 0}, 5, FIRST)]
    rows += reduction({0: 10, 1: 10}, 15)
    got = infer_phases(table(rows).with_columns(instance=pl.Series([0, 0, 1, 1])))
    assert got.select("layer", "phase", "inferred").rows() == [(7, "dispatch", False)] * 2 + [(None, None, False)] * 2


def test_layers_count_from_zero_in_every_step() -> None:
    rows = []
    for turn, matrix in enumerate([FIRST, back(FIRST), FIRST, back(FIRST)]):
        rows += [row | {"instance": turn, "step": turn // 2} for row in exchange({0: turn, 1: turn}, turn, matrix)]
    got = infer_phases(table(rows).with_columns(instance=pl.Series([row["instance"] for row in rows])))
    assert got.filter(pl.col("rank") == 0).select("layer", "phase").rows() == [(0, "dispatch"), (0, "combine")] * 2
