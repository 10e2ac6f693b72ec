"""Groups and stragglers: sums and shares that follow from a handful of collectives."""

from __future__ import annotations

from dataclasses import replace

import pytest
from analysis_fixture import bare, example

from moescope.views.figures.heat import stragglers_figure
from moescope.views.model import Collective, CollectiveRank
from moescope.views.panels.groups import groups_panel, straggler_matrix, stragglers_panel

MS = 1_000_000


def collective(sequence: int, starts: list[int], kind: str = "all_to_all", rate: float | None = None) -> Collective:
    """Ranks arrive at ``starts`` (ms) and transfer for 1 ms after the last."""
    last = max(starts)
    members = tuple(
        CollectiveRank(rank, at * MS, (last + 1) * MS, (last - at) * MS, (last - at) * MS, MS, None, None)
        for rank, at in enumerate(starts)
    )
    return Collective("ep", kind, sequence, 0, None, None, members, "within host", busbw_gb_per_s=rate)


ANALYSIS = replace(
    example(num_steps=2),
    collectives=(
        collective(0, [0, 4, 2], rate=10.0),
        collective(1, [10, 16, 10], rate=30.0),
        collective(2, [20, 20, 23]),
        collective(3, [30, 30, 30], "all_reduce"),
    ),
)


def test_stragglers_are_those_that_others_waited_for() -> None:
    panel = stragglers_panel(ANALYSIS)
    assert panel.reading == (
        "Rank 1 is last in 2 of 3 collectives with waits; "
        "the others wait 18.0 ms for it in all (75.0 % of the waiting)."
    )
    assert panel.tables[0].rows == ((1, 2, 18 * MS), (2, 1, 6 * MS))


def test_straggler_matrix_lies_on_the_time_of_the_last_arrival() -> None:
    matrix = straggler_matrix(ANALYSIS)
    assert set(matrix.rows) >= {1, 2}
    by_rank = dict(zip(matrix.rows, matrix.values, strict=True))
    assert sum(value or 0 for value in by_rank[1]) == 18 * MS
    assert by_rank[1][4] == 6 * MS
    assert matrix.columns[:5] == ("0", "1", "2", "3", "4")  # bins of a millisecond: 31 of them, at most 48 fit
    assert len(stragglers_figure(ANALYSIS).data) == 1


def test_groups_sum_waits_and_take_the_median_bandwidth() -> None:
    first, second = groups_panel(ANALYSIS).tables[0].rows
    assert first == ("ep", "all to all", "within host", 3, 3, 12 * MS, 1.5 * MS, 20.0)
    assert second[1:] == ("all reduce", "within host", 3, 1, 0.0, 0.5 * MS, None)


def test_without_collectives_the_panels_say_so() -> None:
    for panel in (groups_panel(bare()), stragglers_panel(bare())):
        assert panel.empty is not None
    with pytest.raises(ValueError, match="no collectives"):
        stragglers_figure(bare())
