"""Clock offsets by round trips."""

from __future__ import annotations

import rank_jobs
from moescope_hooks.clock import best_round_trip, peers_to_measure
from rank_pool import RankPool


def test_the_quickest_round_trip_counts() -> None:
    """The peer is 1000 ns ahead; a slow round trip on the way there would say 1400."""
    assert best_round_trip([(0, 1900, 1000), (2000, 3050, 2100)]) == (1000, 100, 2050)


def test_a_small_job_measures_every_rank_a_large_one_every_host() -> None:
    assert peers_to_measure(["a", "a", "b"], limit=3) == [1, 2]
    assert peers_to_measure(["a", "a", "b", "b", "c"], limit=3) == [2, 4]


def test_ranks_of_one_host_are_found_together(ranks: RankPool) -> None:
    """The true offset is 0, and half a round trip bounds the error."""
    rows = ranks.run(rank_jobs.measure_clocks)
    assert rows[1:] == [[], [], []]
    assert [(row["peer"], row["when"]) for row in rows[0]] == [(1, "start"), (2, "start"), (3, "start")]
    assert all(abs(row["offset_ns"]) <= row["round_trip_ns"] / 2 + 1 for row in rows[0])


def test_a_rank_that_does_not_come_is_not_waited_for(ranks: RankPool) -> None:
    """Rank 3 does not observe: the others give up together, and the process group is still in order."""
    assert ranks.run(rank_jobs.meet_without, 3) == [True, True, True, True]
