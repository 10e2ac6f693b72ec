"""What the experts' products lose where the step's length hangs on them."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from moescope.attribution.gemm.ranks import loss_within
from moescope.views.build import analyze

SAMPLES = Path(__file__).parent.parent.parent / "sample_traces"


def test_only_products_that_begin_on_the_path_count() -> None:
    stretches = pl.DataFrame({"rank": [0, 1, 0], "start_ns": [100, 400, 600], "end_ns": [300, 600, 700]})
    before, inside, after = [(0, 99, 1)], [(0, 100, 2), (0, 299, 4), (0, 650, 16), (1, 599, 64)], [(0, 300, 8)]
    elsewhere = [(1, 100, 32), (2, 150, 128)]
    table = pl.DataFrame([*before, *inside, *after, *elsewhere], ["rank", "start_ns", "loss_ns"], orient="row")
    assert loss_within(table, stretches) == 2 + 4 + 16 + 64
    assert loss_within(table.clear(), stretches) == loss_within(table, stretches.clear()) == 0


def test_the_path_of_a_run_with_a_slow_rank_loses_what_that_rank_loses() -> None:
    """Rank 5 takes a quarter longer for all it computes, so the path runs over its expert products."""
    gemm = analyze(SAMPLES / "two-hosts", cache=False).gemm
    assert gemm is not None
    assert gemm.critical_loss_ns_per_step is not None
    of_slow = [row.expert_loss_ns for row in gemm.by_rank if row.rank == 5]
    assert gemm.critical_loss_ns_per_step == pytest.approx(sum(of_slow) / len(of_slow), rel=0.02)
