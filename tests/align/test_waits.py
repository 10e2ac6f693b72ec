"""Who waited for whom and how long, in exchanges where some pairs have nothing to say to each other."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_rows import ROW_BYTES, collective, exchange, reduction, table

from moescope.align.waits import with_waits

ONE_HOST = dict.fromkeys(range(4), "a")


def waited(rows: list[dict[str, Any]], hosts: dict[int, str] | None = None) -> pl.DataFrame:
    """Waits of matched rows: those with the same ``instance`` are one collective."""
    frame = table(rows).with_columns(instance=pl.Series([row["instance"] for row in rows], dtype=pl.Int64))
    return with_waits(frame.sort("instance", "rank"), hosts or ONE_HOST).rows


def of(instance: int, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"instance": instance} for row in rows]


SPARSE = [
    [1, 2, 3, 4],
    [1, 2, 3, 4],
    [0, 0, 3, 4],  # rank 2 has nothing for ranks 0 and 1
    [0, 2, 3, 4],  # rank 3 has nothing for rank 0
]


def test_each_rank_waits_for_the_last_that_has_rows_for_it() -> None:
    got = waited(of(0, exchange({0: 0, 1: 100, 2: 200, 3: 300}, 500, SPARSE)))
    assert got["late_rank"].to_list() == [1, 3, 3, None]
    assert got["arrival_wait_ns"].to_list() == [100, 200, 100, 0]
    assert got["transfer_ns"].to_list() == [400, 200, 200, 200]
    assert got["is_last"].to_list() == [False, False, False, True]


def test_in_a_full_exchange_everybody_waits_for_the_last() -> None:
    full = [[1] * 4] * 4
    got = waited(of(0, exchange({0: 0, 1: 100, 2: 300, 3: 200}, 500, full)))
    assert got["arrival_wait_ns"].to_list() == [300, 200, 0, 100]
    assert got["late_rank"].to_list() == [2, 2, None, 2]


def test_a_wait_is_never_longer_than_the_collective() -> None:
    """Rank 0 left before rank 1 came, as clocks that are a little off make it look."""
    got = waited(of(0, reduction({0: 0, 1: 100}, {0: 60, 1: 160})))
    assert got["arrival_wait_ns"].to_list() == [60, 0]
    assert got["transfer_ns"].to_list() == [0, 60]


def test_a_rank_that_sends_to_nobody_holds_up_nobody_but_itself() -> None:
    rows = exchange({0: 0, 1: 10, 2: 900}, {0: 50, 1: 50, 2: 950}, [[1, 1, 1], [1, 1, 1], [0, 0, 0]])
    got = waited(of(0, rows))
    assert got["arrival_wait_ns"].to_list() == [10, 0, 0]


def test_a_rank_whose_splits_were_not_recorded_counts_as_sending_to_all() -> None:
    rows = of(0, exchange({0: 0, 1: 100}, 200, [[1, 0], [1, 1]]))
    rows[1]["in_splits"] = None
    assert waited(rows)["arrival_wait_ns"].to_list() == [100, 0]


def test_among_equally_late_ranks_the_lowest_is_named_and_at_equal_arrivals_nobody() -> None:
    got = waited([*of(0, reduction({0: 0, 1: 50, 2: 50}, 90)), *of(1, reduction({0: 100, 1: 100}, 120))])
    assert got["late_rank"].to_list() == [1, None, None, None, None]
    assert got["is_last"].to_list() == [False, True, False, False, False]


def test_both_sides_of_a_message_wait_for_each_other_but_not_a_sender_that_left_into_a_buffer() -> None:
    def message(sent: tuple[int, int], received: tuple[int, int]) -> list[dict[str, Any]]:
        sides = {"kind": "p2p", "sends": True, "peer": 1}, {"kind": "p2p", "sends": False, "peer": 0}
        return [collective(0, *sent, **sides[0]), collective(1, *received, **sides[1])]

    late_receiver, late_sender, buffered = (
        waited(of(0, message(*times))) for times in (((0, 90), (50, 90)), ((50, 90), (0, 92)), ((0, 20), (50, 60)))
    )
    assert late_receiver.select("arrival_wait_ns", "late_rank").rows() == [(50, 1), (0, None)]
    assert late_sender.select("arrival_wait_ns", "late_rank").rows() == [(0, None), (50, 0)]
    assert buffered.select("arrival_wait_ns", "late_rank").rows() == [(0, None), (0, None)]


def test_a_collective_some_of_whose_ranks_are_missing_says_so() -> None:
    got = waited([*of(0, reduction({0: 0, 1: 50}, 90)), *of(1, [collective(0, 0, 9, members=(0, 1, 2))])])
    assert got["complete"].to_list() == [True, True, False]


def test_hosts_decide_the_tier() -> None:
    rows = [*of(0, reduction({0: 0, 1: 1}, 9)), *of(1, reduction({1: 10, 2: 11}, 19))]
    got = waited(rows, {0: "a", 1: "a", 2: "b"})
    assert got["tier"].to_list() == ["within host"] * 2 + ["across hosts"] * 2


ALPHA_NS, BYTES_PER_NS = 1000, 0.008
"""What the calm exchanges below obey: 1 us and 8 bytes (one row) per further microsecond."""


def calm(rows: int) -> int:
    """Duration of an exchange in which two ranks swap ``rows`` rows, everybody there."""
    return ALPHA_NS + round(rows * ROW_BYTES / BYTES_PER_NS)


def calm_exchanges(first: int = 0) -> list[dict[str, Any]]:
    found = []
    for index, rows in enumerate((2, 3, 5, 8, 13, 21), start=first):
        begin = 100_000 * index
        found += of(index, exchange({0: begin, 1: begin}, begin + calm(rows), [[4, rows], [rows, 4]]))
    return found


def test_what_was_exchanged_while_waiting_is_not_removable() -> None:
    """Alone a swap of 4 rows takes 5 us. Rank 0 came 3 us early and was busy for 7: arriving together saves 2."""
    begin = 10_000_000
    late = exchange({0: begin, 1: begin + 3000}, {0: begin + 7000, 1: begin + 8000}, [[9, 4], [4, 9]])
    got = waited([*calm_exchanges(), *of(99, late)]).filter(pl.col("instance") == 99)
    assert got["arrival_wait_ns"].to_list() == [3000, 0]
    assert got["removable_wait_ns"].to_list() == [2000, 0]
    assert got["transfer_ns"].to_list() == [4000, 5000]


def test_no_wait_is_removable_in_an_exchange_that_was_over_in_its_own_time() -> None:
    begin = 10_000_000
    late = exchange({0: begin, 1: begin + 1000}, begin + calm(4), [[9, 4], [4, 9]])
    got = waited([*calm_exchanges(), *of(99, late)]).filter(pl.col("instance") == 99)
    assert got["arrival_wait_ns"].to_list() == [1000, 0]
    assert got["removable_wait_ns"].to_list() == [0, 0]


def test_without_a_model_and_in_reductions_the_whole_wait_is_removable() -> None:
    rows = [*of(0, exchange({0: 0, 1: 300}, 500, [[1, 1], [1, 1]])), *of(1, reduction({0: 600, 1: 900}, 1000))]
    assert waited(rows)["removable_wait_ns"].to_list() == [300, 0, 300, 0]


@pytest.mark.parametrize("kind", ["all_gather", "barrier", "other"])
def test_other_kinds_wait_too(kind: str) -> None:
    rows = [row | {"kind": kind} for row in of(0, reduction({0: 0, 1: 300}, 500))]
    assert waited(rows)["arrival_wait_ns"].to_list() == [300, 0]


def rooted(kind: str, starts: dict[int, int], ends: dict[int, int], root: int | None) -> pl.DataFrame:
    return waited([row | {"kind": kind, "root": root} for row in of(0, reduction(starts, ends))])


@pytest.mark.parametrize("kind", ["broadcast", "scatter"])
def test_who_gets_from_a_root_waits_for_the_root_alone(kind: str) -> None:
    """Rank 2 comes last, but rank 1 is the root."""
    got = rooted(kind, {0: 0, 1: 300, 2: 400}, {0: 500, 1: 350, 2: 600}, root=1)
    assert got["arrival_wait_ns"].to_list() == [300, 0, 0]
    assert got["late_rank"].to_list() == [1, None, None]


@pytest.mark.parametrize("kind", ["reduce", "gather"])
def test_only_the_root_waits_where_all_goes_to_it(kind: str) -> None:
    got = rooted(kind, {0: 0, 1: 100, 2: 400}, {0: 50, 1: 600, 2: 500}, root=1)
    assert got["arrival_wait_ns"].to_list() == [0, 300, 0]
    assert got["late_rank"].to_list() == [None, 2, None]


def test_a_root_that_was_not_recorded_is_narrowed_down_by_who_left_when() -> None:
    """Rank 2 came after rank 0 had left, so it is no root of the broadcast. Of the others either may be; rank 2 waits
    for neither, and rank 0 might be the root."""
    got = rooted("broadcast", {0: 0, 1: 300, 2: 700}, {0: 500, 1: 350, 2: 800}, root=None)
    assert got["arrival_wait_ns"].to_list() == [0, 0, 0]
    late = rooted("broadcast", {0: 0, 1: 300, 2: 400}, {0: 390, 1: 350, 2: 800}, root=None)
    assert late["arrival_wait_ns"].to_list() == [0, 0, 0]
    reduced = rooted("reduce", {0: 0, 1: 100, 2: 400}, {0: 50, 1: 600, 2: 450}, root=None)
    assert reduced["arrival_wait_ns"].to_list() == [0, 0, 0]  # the last to come may be the root, which waits for nobody


@st.composite
def exchanges(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A dozen exchanges of 2 to 4 ranks with any splits, arrivals and ends, and a few calm ones."""
    size = draw(st.integers(2, 4))
    rows = calm_exchanges()
    for index in range(draw(st.integers(1, 4))):
        begin = 10**7 + 10**5 * index
        start = {rank: begin + draw(st.integers(0, 2000)) for rank in range(size)}
        end = {rank: start[rank] + draw(st.integers(0, 3000)) for rank in range(size)}
        matrix = [[draw(st.integers(0, 3)) for _ in range(size)] for _ in range(size)]
        rows += of(100 + index, exchange(start, end, matrix))
    return rows


@settings(max_examples=25)
@given(exchanges())
def test_waits_and_transfers_add_up_to_the_duration(rows: list[dict[str, Any]]) -> None:
    got = waited(rows)
    duration = got["end_ns"] - got["start_ns"]
    assert (got["arrival_wait_ns"] + got["transfer_ns"]).to_list() == duration.to_list()
    assert (got["arrival_wait_ns"] >= 0).all()
    assert (got["transfer_ns"] >= 0).all()
    assert (got["removable_wait_ns"] >= 0).all()
    assert (got["removable_wait_ns"] <= got["arrival_wait_ns"]).all()
    assert got["late_rank"].is_null().to_list() == (got["arrival_wait_ns"] == 0).to_list()
    assert (got.group_by("instance").agg(pl.col("is_last").sum())["is_last"] <= 1).all()


@settings(max_examples=25)
@given(exchanges())
def test_a_late_rank_begins_later_and_has_rows_for_the_waiting_one(rows: list[dict[str, Any]]) -> None:
    for _, part in waited(rows).group_by("instance"):
        rank = {row["rank"]: row for row in part.iter_rows(named=True)}
        for row in rank.values():
            if row["late_rank"] is not None:
                late = rank[row["late_rank"]]
                assert late["start_ns"] - row["start_ns"] >= row["arrival_wait_ns"]
                assert late["in_splits"][row["members"].index(row["rank"])] > 0
