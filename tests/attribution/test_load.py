"""Load formulas by hand, counts from telemetry and from splits, and the level that chance alone would reach."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_rows import exchange, table

from moescope.attribution.expert_work import row_costs
from moescope.attribution.gemm.rows import local_rows
from moescope.attribution.load import (
    counts_from_splits,
    counts_from_telemetry,
    dead_experts,
    imbalance_cost_ns,
    intervals,
    max_violation,
    normalised_entropy,
    random_floor,
)

loads = st.lists(st.integers(0, 1000), min_size=2, max_size=16).map(lambda values: np.array(values, dtype=np.float64))


def test_maxvio_by_hand() -> None:
    assert max_violation(np.array([10.0, 20.0, 30.0, 40.0])) == pytest.approx(40 / 25 - 1)
    assert max_violation(np.array([5.0, 5.0])) == 0.0
    assert max_violation(np.array([7.0, 0.0, 0.0, 0.0])) == 3.0  # one takes all: E - 1
    assert max_violation(np.zeros(4)) == 0.0
    assert max_violation(np.zeros(0)) == 0.0


@given(loads, st.integers(1, 50))
def test_maxvio_knows_neither_scale_nor_order_and_is_at_most_one_less_than_the_number(
    values: np.ndarray, factor: int
) -> None:
    got = max_violation(values)
    assert got == pytest.approx(max_violation(values[::-1] * factor))
    assert 0.0 <= got <= len(values) - 1 + 1e-9


def test_entropy_by_hand() -> None:
    assert normalised_entropy(np.array([3.0, 3.0, 3.0])) == pytest.approx(1.0)
    assert normalised_entropy(np.array([9.0, 0.0, 0.0])) == pytest.approx(0.0)
    half = -(0.5 * math.log(0.5) + 2 * 0.25 * math.log(0.25)) / math.log(4)
    assert normalised_entropy(np.array([2.0, 1.0, 1.0, 0.0])) == pytest.approx(half)
    assert normalised_entropy(np.zeros(4)) == 1.0


@given(loads)
def test_entropy_lies_between_one_bin_and_all(values: np.ndarray) -> None:
    assert -1e-9 <= normalised_entropy(values) <= 1 + 1e-9


def test_dead_experts_are_those_that_no_token_reached() -> None:
    assert dead_experts(np.array([3, 0, 1, 0])) == 2


@pytest.mark.parametrize(("assignments", "bins"), [(4096, 8), (16384, 64), (65536, 128), (2048, 8)])
def test_the_floor_is_what_random_routing_reaches(assignments: int, bins: int) -> None:
    """sqrt(2 ln E * E / n) is an upper estimate of the expectation: measured on random routing it is met from below."""
    draw = np.random.default_rng(assignments + bins)
    measured = np.mean([max_violation(draw.multinomial(assignments, np.full(bins, 1 / bins))) for _ in range(300)])
    assert 0.6 * random_floor(assignments, bins) <= measured <= random_floor(assignments, bins)


def test_floor_of_nothing() -> None:
    assert random_floor(0, 8) == 0.0
    assert random_floor(100, 1) == 0.0


TELEMETRY = {
    "rank": pl.Int64, "step": pl.Int64, "microbatch": pl.Int64, "layer": pl.Int64,
    "counts": pl.List(pl.Int64), "dropped": pl.Int64,
}  # fmt: skip


def telemetry(rows: list[tuple[int, int, int, int, list[int], int]]) -> pl.DataFrame:
    return pl.DataFrame(rows, TELEMETRY, orient="row")


def test_counts_of_all_sources_go_to_the_ranks_that_hold_the_experts() -> None:
    """Two groups of two ranks, four experts, contiguous: rank 0 and 2 hold experts 0 and 1 of their groups."""
    table = telemetry([(0, 0, 0, 1, [1, 2, 3, 4], 0), (1, 0, 0, 1, [10, 0, 0, 0], 2), (2, 0, 0, 1, [5, 5, 5, 5], 0)])
    counts = counts_from_telemetry(table, [[0, 1], [2, 3]], None)
    assert counts is not None
    assert counts.rank_counts.select("rank", "tokens").rows() == [(0, 13.0), (1, 7.0), (2, 10.0), (3, 10.0)]
    assert counts.expert_counts["counts"].to_list() == [[16.0, 7.0, 8.0, 9.0]]
    assert counts.dropped.rows() == [(1, 2 / 40)]


def test_a_placement_by_layer_is_followed_in_each_of_them() -> None:
    """Layer 0: experts 1 and 3 on member 0; layer 1 as listed; layer 2 not listed, so contiguous."""
    table = telemetry([(0, 0, 0, layer, [1, 2, 3, 4], 0) for layer in range(3)])
    counts = counts_from_telemetry(table, [[0, 1]], {"0": [1, 0, 1, 0], "1": [0, 1, 1, 0]})
    assert counts is not None
    by_layer = counts.rank_counts.group_by("layer", maintain_order=True).agg("rank", "tokens").rows()
    assert by_layer == [(0, [0, 1], [6, 4]), (1, [0, 1], [5, 5]), (2, [0, 1], [3, 7])]
    rows = local_rows(table, [[0, 1]], {"0": [1, 0, 1, 0]}).sort("layer", "rank")
    assert rows["group_rows"].to_list()[:2] == [[2, 4], [1, 3]]


def test_a_recorded_placement_is_followed() -> None:
    counts = counts_from_telemetry(telemetry([(0, 0, 0, 0, [1, 2, 3, 4], 0)]), [[0, 1]], [1, 0, 1, 0])
    assert counts is not None
    assert counts.rank_counts.select("rank", "tokens").rows() == [(0, 6.0), (1, 4.0)]


def test_without_groups_or_rows_telemetry_tells_no_load() -> None:
    assert counts_from_telemetry(telemetry([]), [[0, 1]], None) is None
    assert counts_from_telemetry(telemetry([(0, 0, 0, 0, [1, 2], 0)]), [], None) is None


def test_intervals_keep_what_averages_hide() -> None:
    """Each expert is hot once: on average nothing is uneven, in every interval everything is."""
    table = telemetry([(0, 0, 0, 0, [30, 10], 0), (0, 0, 1, 0, [10, 30], 0)])
    counts = counts_from_telemetry(table, [[0, 1]], None)
    assert counts is not None
    found = intervals(counts)
    assert found.select("microbatch", "maxvio_rank", "hottest_rank", "total", "hottest_expert").rows() == [
        (0, 0.5, 0, 40.0, 0), (1, 0.5, 1, 40.0, 1),
    ]  # fmt: skip
    assert found["entropy"].to_list() == pytest.approx(
        [-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)) / math.log(2)] * 2
    )


def dispatched(*matrices: list[list[int]], **rest: object) -> pl.DataFrame:
    rows = []
    for turn, matrix in enumerate(matrices):
        own = {"instance": turn, "phase": "dispatch", "layer": 0, "backward": False, "complete": True, "step": 0}
        rows += [row | own | rest for row in exchange({0: turn, 1: turn}, turn + 1, matrix)]
    more = {"instance": pl.Int64, "complete": pl.Boolean}
    columns = {name: pl.Series([row[name] for row in rows], dtype=dtype) for name, dtype in more.items()}
    return table(rows).with_columns(**columns)


def test_rows_received_in_dispatches_are_the_ranks_load() -> None:
    counts = counts_from_splits(dispatched([[1, 2], [3, 4]], [[5, 0], [0, 5]]))
    assert counts is not None
    assert counts.rank_counts.select("microbatch", "rank", "tokens").rows() == [
        (0, 0, 4.0), (0, 1, 6.0), (1, 0, 5.0), (1, 1, 5.0),
    ]  # fmt: skip
    assert counts.expert_counts.is_empty()


@pytest.mark.parametrize("rest", [{"phase": "combine"}, {"backward": True}, {"complete": False}, {"layer": None}])
def test_other_exchanges_tell_no_load(rest: dict[str, object]) -> None:
    assert counts_from_splits(dispatched([[1, 2], [3, 4]], **rest)) is None


WORK = {
    "step": pl.Int64, "turn": pl.Int64, "layer": pl.Int64, "backward": pl.Boolean, "rank": pl.Int64,
    "rows": pl.Float64, "work_ns": pl.Float64,
}  # fmt: skip


def work(rows: list[tuple[int, int, int, bool, int, float, float]], *, complete: bool = True) -> pl.DataFrame:
    return pl.DataFrame(rows, WORK, orient="row").with_columns(complete=pl.lit(complete))


def test_imbalance_costs_the_maximum_over_the_mean_layer_by_layer() -> None:
    """Layer 0 costs 40 - 25 and 30 - 20, layer 1 10 - 10: the hottest rank changes, and both times count."""
    table = work(
        [(0, 1, 0, False, rank, 1, ns) for rank, ns in enumerate([10, 20, 30, 40])]
        + [(1, 1, 0, False, rank, 1, ns) for rank, ns in enumerate([30, 10, 20, 20])]
        + [(0, 3, 1, False, rank, 1, 10) for rank in range(4)]
    )
    assert imbalance_cost_ns(table) == {0: 15 + 10, 1: 0}
    assert imbalance_cost_ns(table.head(0)) == {}


def test_where_ranks_are_missing_the_cost_of_imbalance_is_not_known_but_that_of_a_row_is() -> None:
    rows = [(0, 1, 0, False, rank, 10.0 * (rank + 1), 50.0 + 20 * (rank + 1)) for rank in range(5)]
    assert imbalance_cost_ns(work(rows, complete=False)) == {}
    cost = row_costs(work(rows, complete=False))[False]
    assert (cost.fixed_ns, cost.ns_per_row) == pytest.approx((50, 2), rel=1e-3)


def test_the_cost_of_a_row_is_fitted_without_the_slow_rank() -> None:
    """200 ns and 3 ns per row; rank 7 takes half as long again for everything it does."""
    table = work(
        [
            (0, turn, 0, False, rank, rows, (200 + 3 * rows) * (1.5 if rank == 7 else 1.0))
            for turn in range(5)
            for rank in range(8)
            for rows in [100 + 37 * ((rank * 3 + turn) % 8)]
        ]
    )
    cost = row_costs(table)[False]
    assert (cost.fixed_ns, cost.ns_per_row) == pytest.approx((200, 3), rel=0.01)
    assert cost.num_points == 40


def test_forward_and_backward_rows_cost_differently() -> None:
    rows = [10.0, 20.0, 30.0, 40.0]
    both = work(
        [(0, 1, 0, False, rank, n, 2 * n) for rank, n in enumerate(rows)]
        + [(0, 2, 0, True, rank, n, 4 * n) for rank, n in enumerate(rows)]
    )
    assert {backward: round(cost.ns_per_row, 3) for backward, cost in row_costs(both).items()} == {
        False: 2.0,
        True: 4.0,
    }


def test_equal_rows_tell_the_median_cost_of_a_row_and_few_uneven_ones_none() -> None:
    equal = row_costs(work([(0, 1, 0, False, rank, 10.0, 30.0 if rank == 2 else 20.0) for rank in range(4)]))[False]
    assert (equal.fixed_ns, equal.ns_per_row) == (0.0, 2.0)
    assert row_costs(work([(0, 1, 0, False, rank, 10.0 * rank, 20.0) for rank in range(3)])) == {}
