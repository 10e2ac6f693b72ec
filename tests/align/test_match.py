"""The same collective on every rank: by number, by order, past lost events, and refused rather than guessed."""

from __future__ import annotations

import random
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_rows import collective, exchange, reduction, table

from moescope.align.match import Matched, match


def together(found: Matched) -> list[list[tuple[int, int]]]:
    """(rank, start) of the rows of each instance, in order of the instances."""
    parts = found.rows.sort("instance", "rank").group_by("instance", maintain_order=True)
    return [part.select("rank", "start_ns").rows() for _, part in parts]


def rounds(number: int, ranks: int = 2, **rest: Any) -> list[dict[str, Any]]:
    """Exchanges of ``ranks`` ranks whose splits differ from round to round; rank r arrives r ns late in each."""
    rows = []
    for turn in range(number):
        sizes = [[1 + (turn * 7 + i * 3 + j) % 11 for j in range(ranks)] for i in range(ranks)]
        rows += exchange({r: 100 * turn + r for r in range(ranks)}, 100 * turn + 50, sizes, **rest)
    return rows


def test_by_order_within_the_step() -> None:
    assert together(match(table(rounds(3)))) == [[(0, 0), (1, 1)], [(0, 100), (1, 101)], [(0, 200), (1, 201)]]


def test_by_number_whatever_the_order() -> None:
    """Rank 1 ran its two reductions the other way round, as streams with priorities may."""
    rows = [
        *reduction({0: 0}, 10, seq=1), *reduction({0: 20}, 30, seq=2),
        *reduction({1: 5}, 12, seq=2), *reduction({1: 21}, 31, seq=1),
    ]  # fmt: skip
    found = match(table([row | {"members": [0, 1]} for row in rows]))
    assert together(found) == [[(0, 0), (1, 21)], [(0, 20), (1, 5)]]
    assert found.rows["sequence"].to_list() == [1, 1, 2, 2]


@pytest.mark.parametrize("lost", [0, 2, 4])
def test_a_lost_event_shifts_nothing(lost: int) -> None:
    rows = [row for row in rounds(5) if not (row["rank"] == 1 and row["start_ns"] == 100 * lost + 1)]
    whole = [[(0, 100 * turn), (1, 100 * turn + 1)] for turn in range(5)]
    whole[lost] = [(0, 100 * lost)]
    found = match(table(rows))
    assert together(found) == whole
    assert (found.num_unmatched, found.refusals) == (1, ())


def test_a_lost_event_among_reductions_is_found_by_their_sizes() -> None:
    rows = [row for turn in range(5) for row in reduction({0: 100 * turn, 1: 100 * turn + 1}, 50, size=64 + turn)]
    del rows[3]  # rank 1's second
    assert together(match(table(rows)))[1:3] == [[(0, 100)], [(0, 200), (1, 201)]]


def test_an_event_nobody_else_has_stands_alone() -> None:
    rows = [*rounds(4), collective(1, 150, 160, sent=[50, 50], received=[50, 50])]
    found = match(table(rows))
    assert [(1, 150)] in together(found)
    assert [len(part) for part in together(found)].count(2) == 4
    assert found.num_unmatched == 1


def test_numbers_that_do_not_verify_give_way_to_the_order() -> None:
    """A communicator that rank 1 counts from one further on, as after a restart of its counter."""
    rows = [row | {"seq": row["start_ns"] // 100 + row["rank"]} for row in rounds(6)]
    assert [len(part) for part in together(match(table(rows)))] == [2] * 6


def test_a_group_that_does_not_agree_is_refused_with_the_reason() -> None:
    rows = [row | {"seq": None} for row in rounds(4)]
    for row in rows[1::2]:
        row["out_splits"] = [99, 99]
    good = [row | {"members": [2, 3], "group": "g 2-3"} for row in reduction({2: 0, 3: 1}, 9)]
    found = match(table([*rows, *good]))
    assert together(found) == [[(2, 0), (3, 1)]]
    assert [(refusal.group, refusal.num_collectives) for refusal in found.refusals] == [("g [0, 1]", 8)]
    assert found.refusals[0].reason.startswith("only 0.0% of the collectives have a counterpart")


def test_numbered_collectives_that_disagree_are_refused_too() -> None:
    """One type on one rank, another on the other, whichever way they are paired: the numbers cannot be trusted."""
    rows = [row | {"seq": row["start_ns"] // 100, "dtype": ["Float", "Half"][row["rank"]]} for row in rounds(4)]
    assert [refusal.num_collectives for refusal in match(table(rows)).refusals] == [8]


def test_a_rank_that_recorded_fewer_steps_is_no_reason_to_refuse() -> None:
    rows = [*reduction({0: 0, 1: 1}, 9), *(row | {"step": n} for n in range(1, 9) for row in reduction({0: 9 * n}, 9))]
    found = match(table([row | {"members": [0, 1]} for row in rows]))
    assert (found.refusals, found.num_unmatched) == ((), 8)


def test_kernels_of_one_collective_are_one_arrival_and_one_end() -> None:
    rows = [collective(0, 0, 10, seq=4), collective(0, 12, 30, seq=4), collective(1, 3, 31, seq=4)]
    found = match(table(rows))
    assert found.rows.select("rank", "start_ns", "end_ns").rows() == [(0, 0, 30), (1, 3, 31)]
    assert found.rows["events"].to_list() == [[0, 1], [2]]


def test_groups_with_the_same_ranks_count_apart() -> None:
    """The default group and the expert group of a small job have the same ranks, and each counts from 0."""
    ep = [row | {"seq": 0, "group_name": "1", "group": "ep 0-1"} for row in reduction({0: 0, 1: 4}, 10)]
    dp = [row | {"seq": 0, "group_name": "0", "group": "dp 0-1"} for row in reduction({0: 20, 1: 26}, 30)]
    assert together(match(table([*ep, *dp]))) == [[(0, 0), (1, 4)], [(0, 20), (1, 26)]]
    unnumbered = [row | {"seq": None} for row in [*ep, *dp]]
    swapped = [row | {"start_ns": {4: 26, 26: 4}.get(row["start_ns"], row["start_ns"])} for row in unnumbered]
    assert together(match(table(swapped))) == [[(0, 0), (1, 26)], [(0, 20), (1, 4)]]


def test_groups_that_ranks_name_differently_still_match() -> None:
    rows = [row | {"seq": 3, "group_name": f"dp{row['rank']}"} for row in reduction({0: 0, 1: 4}, 10)]
    assert together(match(table(rows))) == [[(0, 0), (1, 4)]]


def test_several_groups_side_by_side() -> None:
    rows = [*exchange({0: 0, 1: 5}, 20, [[1, 2], [3, 4]]), *exchange({2: 1, 3: 2}, 20, [[1, 2], [3, 4]])]
    rows += reduction({0: 30, 1: 31, 2: 33, 3: 32}, 40)
    assert together(match(table(rows))) == [[(0, 0), (1, 5)], [(2, 1), (3, 2)], [(0, 30), (1, 31), (2, 33), (3, 32)]]


def test_steps_and_windows_are_matched_apart() -> None:
    """Rank 1 lost the only collective of step 0: its one of step 1 stays in step 1."""
    rows = [*reduction({0: 0}, 9), *(row | {"step": 1} for row in reduction({0: 100, 1: 101}, 110))]
    assert together(match(table([row | {"members": [0, 1]} for row in rows]))) == [[(0, 0)], [(0, 100), (1, 101)]]
    rows = [*reduction({0: 0}, 9, window=0, seq=0), *reduction({0: 100, 1: 101}, 110, window=1, seq=0)]
    assert together(match(table([row | {"members": [0, 1]} for row in rows]))) == [[(0, 0)], [(0, 100), (1, 101)]]


def test_transfers_between_two_ranks_belong_to_no_group() -> None:
    found = match(table([collective(0, 0, 5, kind="p2p"), collective(1, 0, 5, kind="p2p")]))
    assert found.rows.is_empty()
    assert {"instance", "sequence"} <= set(found.rows.columns)


def test_one_rank_alone_lacks_no_counterpart() -> None:
    """Where one rank's trace is all there is, its collectives are not said to be lost on the others."""
    assert match(table([collective(0, 0, 5)])).num_unmatched == 0


def test_kinds_that_differ_are_not_the_same_collective() -> None:
    rows = [*rounds(3), collective(0, 90, 95, kind="barrier")]
    assert [(0, 90)] in together(match(table(rows)))


@settings(max_examples=25)
@given(st.randoms(use_true_random=False), st.booleans())
def test_neither_the_order_of_rows_nor_of_ranks_matters(draw: random.Random, numbered: bool) -> None:
    rows = rounds(4, ranks=3)
    rows = [row | {"seq": row["start_ns"] // 100} for row in rows] if numbered else rows
    expected = together(match(table(rows)))
    draw.shuffle(rows)
    assert together(match(table(rows))) == expected


def test_instances_are_numbered_by_their_first_arrival() -> None:
    rows = [*reduction({2: 50, 3: 51}, 60), *reduction({0: 10, 1: 0}, 20)]
    found = match(table(rows)).rows
    assert found.select("instance", "rank").rows() == [(0, 0), (0, 1), (1, 2), (1, 3)]
    assert found["instance"].dtype == pl.Int64
