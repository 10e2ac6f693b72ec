"""The critical path of a job small enough to know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_moe import NS_PER_ROW, Matrix, balanced, play
from tiny_trace import TinyRank, write

from moescope.cli.tables import path_table
from moescope.views.build import analyze
from moescope.views.model import Analysis
from moescope.views.model.path import CriticalPath
from moescope.views.panels.path import path_panel

STEPS = 6


def analysed(folder: Path, steps: Sequence[tuple[Matrix, Matrix]] | None = None, **faults: Any) -> Analysis:
    return analyze(write(play(steps or [balanced(step) for step in range(STEPS)], **faults), folder), cache=False)


def path_of(analysis: Analysis) -> CriticalPath:
    assert analysis.critical_path is not None
    return analysis.critical_path


def test_the_path_fills_the_steps_and_is_divided_twice(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, pace={1: 1.5})
    path = path_of(analysis)
    steps = sum(step.window_ns for step in analysis.steps) / len(analysis.steps)
    assert path.length_ns == pytest.approx(steps, rel=1e-3)
    assert sum(path.parts_ns.values()) == path.length_ns
    assert sum(rank.ns_per_step for rank in path.ranks) == pytest.approx(path.length_ns, abs=len(path.ranks))


def test_it_runs_over_the_slow_rank_and_would_be_shorter_by_what_the_rank_takes_longer(tmp_path: Path) -> None:
    """Rank 1 takes half as long again for 2 x (10 + step) rows."""
    path = path_of(analysed(tmp_path, pace={1: 1.5}))
    excess = 0.5 * NS_PER_ROW * sum(2 * (10 + step) for step in range(STEPS)) / STEPS
    assert path.ranks[0].rank == 1
    assert [(cause.cause, cause.rank) for cause in path.causes] == [("slow_rank", 1)]
    assert path.causes[0].ns_per_step == pytest.approx(excess, abs=2)


def test_a_late_host_is_on_the_path(tmp_path: Path) -> None:
    path = path_of(analysed(tmp_path, stall_ns={2: 7_000}))
    assert (path.causes[0].cause, path.causes[0].rank) == ("host", 2)
    assert path.causes[0].ns_per_step == pytest.approx(7_000, abs=2)


def test_without_faults_no_cause_shortens_it(tmp_path: Path) -> None:
    assert path_of(analysed(tmp_path)).causes == ()


def test_panel_and_table_say_what_it_consists_of(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, pace={1: 1.5})
    panel = path_panel(analysis)
    assert "runs on rank 1" in panel.reading
    assert panel.tables[1].rows[0][:2] == ("slow rank", 1)
    assert path_table(analysis) is not None


def test_without_collectives_there_is_none(tmp_path: Path) -> None:
    bare = replace(analysed(tmp_path), critical_path=None)
    assert path_panel(bare).empty is not None
    assert path_table(bare) is None


def test_collectives_under_way_at_once_do_not_lengthen_it(tmp_path: Path) -> None:
    """Compute to 10 us, an exchange from 10 to 30 us, a reduction from 20 to 40 us, of one rank of two."""
    rank = TinyRank(0, world_size=2)
    rank.step(0, 0, 40_000)
    rank.kernel("sgemm", 0, 10_000, launched=0)
    rank.exchange(10_000, 20_000, sent=[1, 1], received=[1, 1], group=[0, 1], seq=0, launched=1)
    rank.reduce(20_000, 20_000, group=[0, 1], seq=0, launched=2)
    path = path_of(analyze(write([rank], tmp_path), cache=False))
    assert path.length_ns == 40_000
    assert (path.parts_ns["compute"], path.parts_ns["transfer"]) == (10_000, 30_000)
