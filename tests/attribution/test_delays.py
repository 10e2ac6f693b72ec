"""Who made whom wait, on a job small enough to know: causes pass through groups to the rank that is late of itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tiny_moe import ALPHA_NS, NS_PER_BYTE, NS_PER_ROW, Matrix, balanced, play
from tiny_rows import ROW_BYTES
from tiny_trace import write

from moescope.attribution.delays import transfer_deviation
from moescope.views.build import analyze
from moescope.views.model import Analysis

STEPS = 6


def analysed(folder: Path, steps: Sequence[tuple[Matrix, Matrix]] | None = None, **faults: Any) -> Analysis:
    played = play(steps or [balanced(step) for step in range(STEPS)], **faults)
    return analyze(write(played, folder), cache=False)


def charged(analysis: Analysis) -> dict[tuple[str, int | None], int]:
    """Charged waits per step by cause and culprit, layers summed."""
    total: dict[tuple[str, int | None], int] = defaultdict(int)
    for cause in analysis.causes:
        total[cause.cause, cause.rank] += cause.charged_wait_ns_per_step
    return {key: value for key, value in total.items() if value}


def cost(analysis: Analysis, cause: str, rank: int | None) -> int:
    return sum(entry.cost_ns_per_step for entry in analysis.causes if (entry.cause, entry.rank) == (cause, rank))


def mean_rows() -> float:
    return sum(2 * (10 + step) for step in range(STEPS)) / STEPS


def test_ranks_that_arrive_together_charge_nobody(tmp_path: Path) -> None:
    analysis = analysed(tmp_path)
    assert charged(analysis) == {}
    assert [finding.code for finding in analysis.findings if finding.severity == "good"] == ["balanced"]


def test_a_slow_rank_is_blamed_by_the_other_group_too(tmp_path: Path) -> None:
    """Rank 1 takes half as long again for the same rows. Rank 0 waits for it in the combine, ranks 2 and 3 wait for
    both in the reduction: three waits of half the expert time, and without it the step would be shorter by one."""
    analysis = analysed(tmp_path, pace={1: 1.5})
    excess = 0.5 * NS_PER_ROW * mean_rows()
    assert charged(analysis) == {("slow_rank", 1): pytest.approx(3 * excess, abs=2)}
    assert cost(analysis, "slow_rank", 1) == pytest.approx(excess, abs=2)
    assert {finding.code: finding.rank for finding in analysis.findings if finding.severity == "critical"} == {
        "slow-rank": 1
    }


@pytest.mark.parametrize("num_steps", [1, 4])
def test_at_equal_rows_a_slow_rank_is_not_taken_for_a_hot_one(tmp_path: Path, num_steps: int) -> None:
    """Forced uniform routing: rows never differ, so no cost of a row can be fitted from their differences."""
    analysis = analysed(tmp_path, [balanced(0)] * num_steps, pace={1: 1.5})
    assert charged(analysis) == {("slow_rank", 1): pytest.approx(3 * 0.5 * NS_PER_ROW * 20, abs=2)}
    assert [finding.rank for finding in analysis.findings if finding.code == "slow-rank"] == [1]


def test_who_waited_for_whom(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, pace={1: 1.5})
    excess = 0.5 * NS_PER_ROW * mean_rows()
    edges = {(edge.waiter, edge.late): edge.wait_ns_per_step for edge in analysis.wait_edges}
    assert edges == {
        (0, 1): pytest.approx(excess, abs=1),
        # after the combine ranks 0 and 1 are equally late: the lower is named
        (2, 0): pytest.approx(excess, abs=1),
        (3, 0): pytest.approx(excess, abs=1),
    }


def test_a_hot_rank_is_blamed_for_its_load(tmp_path: Path) -> None:
    """Rank 3 receives twice the rows of the others and takes as long per row; the exchanges with it last longer too."""
    steps = [([[9 + n, 9 + n], [9 + n, 9 + n]], [[9 + n, 18 + 2 * n], [9 + n, 18 + 2 * n]]) for n in range(STEPS)]
    analysis = analysed(tmp_path, steps)
    rows = sum(2 * (9 + n) for n in range(STEPS)) / STEPS  # what the others receive
    excess = NS_PER_ROW * rows  # of rank 3 over rank 2, and over the other group
    longer = 2 * NS_PER_BYTE * ROW_BYTES * rows / 2  # both exchanges of its group, each twice the bytes of the others
    got = charged(analysis)
    assert got.pop(("expert_load", 3)) == pytest.approx(3 * excess, abs=3)
    ((cause, rank), rest) = got.popitem()
    assert (cause, rest, got) == ("volume_imbalance", pytest.approx(2 * longer, abs=3), {})
    assert rank in {2, 3}  # the one that sends as much as the other receives


def test_load_and_slowness_of_one_rank_are_told_apart(tmp_path: Path) -> None:
    """Rank 3 receives twice the rows and takes a quarter longer for each."""
    steps = [([[9 + n, 9 + n], [9 + n, 9 + n]], [[9 + n, 18 + 2 * n], [9 + n, 18 + 2 * n]]) for n in range(STEPS)]
    analysis = analysed(tmp_path, steps, pace={3: 1.25})
    rows = sum(2 * (9 + n) for n in range(STEPS)) / STEPS
    got = charged(analysis)
    assert got["slow_rank", 3] == pytest.approx(3 * 0.25 * NS_PER_ROW * 2 * rows, rel=0.03)
    assert got["expert_load", 3] > 3 * NS_PER_ROW * rows * 0.97


def test_a_host_that_launches_late_is_blamed(tmp_path: Path) -> None:
    """Rank 2 launches attention 7 us late: rank 3 waits for it in the dispatch, ranks 0 and 1 in the reduction."""
    analysis = analysed(tmp_path, stall_ns={2: 7_000})
    assert charged(analysis) == {("host", 2): pytest.approx(21_000, abs=2)}
    assert cost(analysis, "host", 2) == pytest.approx(7_000, abs=2)


def test_a_copy_on_one_device_is_blamed_on_memory(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, copy_ns={0: 5_000})
    assert charged(analysis) == {("memory", 0): pytest.approx(15_000, abs=2)}


def test_what_happened_before_the_window_is_not_known(tmp_path: Path) -> None:
    """Rank 1 begins 9 us late, once: rank 0 waits for it in the first dispatch, the others in the first reduction."""
    analysis = analysed(tmp_path, begin_ns={1: 9_000})
    assert charged(analysis) == {("unexplained", 1): pytest.approx(27_000 / STEPS, abs=2)}


def test_two_slow_ranks_share_the_blame_where_both_hold_somebody_up(tmp_path: Path) -> None:
    """Rank 1 is slow by 40 %, rank 3 by 20 %: in the combines each is charged by its own peer; in the reduction ranks
    2 and 3 wait for what rank 1 is slower by than rank 3."""
    analysis = analysed(tmp_path, pace={1: 1.4, 3: 1.2})
    unit = NS_PER_ROW * mean_rows()
    got = charged(analysis)
    assert sum(got.values()) == pytest.approx((0.4 + 0.2 + 2 * 0.2) * unit, abs=3)
    assert got["slow_rank", 1] == pytest.approx((0.4 + 2 * 0.2) * unit, rel=0.02)
    assert got["slow_rank", 3] == pytest.approx(0.2 * unit, rel=0.02)


def test_of_two_ranks_the_slow_one_is_blamed_not_the_fast(tmp_path: Path) -> None:
    """The median of two ranks lies between them: that one is ahead of it delays nobody."""
    played = play([balanced(step) for step in range(STEPS)], pace={1: 1.5})[:2]
    analysis = analyze(write(played, tmp_path), cache=False)
    assert charged(analysis) == {("slow_rank", 1): pytest.approx(0.5 * NS_PER_ROW * mean_rows(), abs=2)}


def test_the_cost_of_imbalance_is_the_maximum_over_the_mean(tmp_path: Path) -> None:
    """Of 2, 2, 2 and 4 units of expert time the step waits for 4 where 2.5 would do."""
    steps = [([[9, 9], [9, 9]], [[9, 18], [9, 18]])] * STEPS
    analysis = analysed(tmp_path, steps)
    assert analysis.load is not None
    assert analysis.load.cost_ns_per_step == round(NS_PER_ROW * (36 - (18 * 3 + 36) / 4))
    assert (analysis.load.hottest_rank, analysis.load.source) == (3, "splits")
    assert analysis.load.maxvio_rank == pytest.approx(36 / 22.5 - 1)


def test_model_of_the_exchanges(tmp_path: Path) -> None:
    """The tiny job's own constants come back: what waiting cost is what alpha and the bytes do not explain."""
    analysis = analysed(tmp_path, pace={1: 1.5})
    for collective in analysis.collectives:
        if collective.kind == "all_to_all" and collective.phase == "combine":
            for rank in collective.by_rank:
                assert rank.removable_wait_ns == rank.arrival_wait_ns
                assert rank.transfer_ns == ALPHA_NS + NS_PER_BYTE * (rank.send_bytes or 0) // 2


def test_without_a_link_model_a_longer_transfer_is_the_links_not_the_volumes() -> None:
    table = {"step": [0, 0], "stage": [0, 0], "turn": [0, 0], "kind": ["all_to_all"] * 2, "transfer_ns": [100, 300]}
    table |= {"arrival_wait_ns": [0, 0], "is_blocking": [True, True], "is_held": [False, False]}
    unmodelled = pl.DataFrame({**table, "even_links_ns": pl.Series([None, None], dtype=pl.Float64)})
    link, volume = transfer_deviation(unmodelled)
    assert link.tolist() == [-100, 100]
    assert volume.tolist() == [0, 0]
    modelled = pl.DataFrame({**table, "even_links_ns": [100.0, 250.0]})
    link, volume = transfer_deviation(modelled)
    assert volume.tolist() == [-75, 75]
    assert link.tolist() == [-25, 25]
