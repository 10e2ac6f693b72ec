"""Messages between two ranks: matched in their pair and direction, and what they tell of pipeline stages."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_rows import collective, reduction, table

from moescope.align.match import match
from moescope.align.pairs import pipeline_stages, with_pairs


def side(rank: int, peer: int, start: int, *, sends: bool, **rest: Any) -> dict[str, Any]:
    """One rank's side of a message, as recorded in the group of both pipelines' ranks."""
    named = {"kind": "p2p", "peer": peer, "sends": sends, "size": 64, "group_description": "pp", "members": (0, 1, 2)}
    return collective(rank, start, start + 5, **{**named, **rest})


def message(sender: int, receiver: int, start: int, **rest: Any) -> list[dict[str, Any]]:
    return [side(sender, receiver, start, sends=True, **rest), side(receiver, sender, start + 1, sends=False, **rest)]


def test_messages_are_matched_in_order_in_each_direction_whatever_their_numbers() -> None:
    """Rank 1 lies in the middle, so it counts messages of both neighbours."""
    rows = [*message(0, 1, 0), *message(1, 2, 10), *message(0, 1, 20), *message(1, 0, 30)]
    counted = [row | {"seq": [r["rank"] for r in rows[:at]].count(row["rank"])} for at, row in enumerate(rows)]
    found = match(table(counted))
    assert found.refusals == ()
    pairs = found.rows.sort("instance", "rank").group_by("instance", maintain_order=True)
    assert [(part["group"][0], part["sequence"].to_list(), part["start_ns"].to_list()) for _, part in pairs] == [
        ("pp 0->1", [0, 0], [0, 1]),
        ("pp 1->2", [0, 0], [10, 11]),
        ("pp 0->1", [1, 1], [20, 21]),
        ("pp 1->0", [0, 0], [31, 30]),
    ]


def test_exchanges_both_ways_are_matched_apart_from_messages_one_way() -> None:
    both = [side(rank, 1 - rank, 10 + rank, sends=True) | {"sends": None} for rank in (0, 1)]
    found = match(table([*message(0, 1, 0), *both, *message(0, 1, 20)]))
    groups = found.rows.group_by("instance", maintain_order=True).agg(pl.col("group").unique(), pl.len())
    assert groups.select("group", "len").rows() == [(["pp 0->1"], 2), (["pp 0<->1"], 2), (["pp 0->1"], 2)]


def test_where_one_side_lost_a_message_nobody_guesses_which() -> None:
    rows = [row for turn in range(4) for row in message(0, 1, 10 * turn)]
    whole = [row for turn in range(4) for row in message(0, 1, 100 + 10 * turn, step=1)]
    again = [row for turn in range(4) for row in message(0, 1, 200 + 10 * turn, step=2)]
    found = match(table([*rows[:2], *rows[3:], *whole, *again]))
    assert found.refusals == ()
    shared = found.rows.group_by("instance").len().sort("instance")["len"].to_list()
    assert sorted(shared) == [1] * 7 + [2] * 8
    assert found.num_unmatched == 7


def test_a_message_whose_peer_is_not_recorded_belongs_to_nobody() -> None:
    found = match(table([*reduction({0: 0, 1: 1}, 9), side(0, 1, 20, sends=True) | {"peer": None}]))
    assert found.rows["kind"].to_list() == ["all_reduce"] * 2


def test_collectives_keep_their_group_and_number() -> None:
    rows = with_pairs(table(reduction({0: 0, 1: 1}, 9, seq=7)))
    assert rows.select("sender", "stage", "seq").rows() == [(None, 0, 7)] * 2
    assert rows["members"].to_list() == [[0, 1]] * 2


@pytest.mark.parametrize(("stages", "width"), [(2, 3), (4, 2), (3, 1)])
def test_stages_are_counted_along_each_pipeline(stages: int, width: int) -> None:
    rows = [
        row
        for column in range(width)
        for stage in range(stages - 1)
        for row in message(stage * width + column, (stage + 1) * width + column, 10 * stage)
    ]
    found = pipeline_stages(table(rows))
    assert found == {rank: rank // width for rank in range(stages * width)}


def test_ranks_of_one_expert_group_are_no_stages_though_they_exchange_messages() -> None:
    ring = [row for rank in range(2) for row in message(rank, 1 - rank, 10 * rank)]
    experts = [collective(rank, 50, 60, members=(0, 1)) for rank in (0, 1)]
    assert pipeline_stages(table(ring)) == {0: 0, 1: 1}
    assert pipeline_stages(table([*ring, *experts])) == {}
    apart = [collective(rank, 50, 60, members=(rank, rank + 2)) for rank in (0, 1)]
    assert pipeline_stages(table([*ring, *apart])) == {0: 0, 1: 1}
    unnamed = [row | {"group_name": None} for row in experts]  # a kernel without arguments counts as everybody's
    assert pipeline_stages(table([*ring, *unnamed])) == {0: 0, 1: 1}


@given(st.permutations(range(5)))
def test_stages_do_not_hang_on_the_order_of_the_rows(order: list[int]) -> None:
    rows = [row for stage in range(5) for row in message(stage, (stage + 1) % 6, stage)]
    shuffled = [rows[2 * at + way] for at in order for way in (1, 0)]
    assert pipeline_stages(table(shuffled)) == {rank: rank for rank in range(6)}
