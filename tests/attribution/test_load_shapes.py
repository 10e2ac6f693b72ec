"""Load of ranks from the shapes of grouped products."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_trace import TinyRank, write

from moescope.views.build import analyze
from moescope.views.model import Analysis

US = 1_000
BF16 = {"Input type": ["c10::BFloat16", "c10::BFloat16", "int"]}


def analysed(folder: Path, rows: dict[int, list[int]], *, with_layers: bool = True) -> Analysis:
    """Each rank's rows by layer: two grouped products each, forward, and one of the backward pass."""
    ranks = []
    for rank, by_layer in rows.items():
        one = TinyRank(rank, world_size=len(rows))
        one.step(0, 0, 1000 * US)
        for layer, received in enumerate(by_layer):
            at = (10 + 40 * layer) * US
            if with_layers:
                one.annotate(f"moescope::L{layer}.mb0.experts", at, 30 * US)
            for turn, width in enumerate((1024, 512)):
                dims = {"Input Dims": [[received, width], [8, width, 64], [8]]}
                one.op("aten::_grouped_mm", at + (1 + turn) * US, 100, **dims, **BF16)
                one.kernel("cutlass grouped", at + (400 + 10 * turn) * US, 5 * US, launched=at + (1 + turn) * US + 10)
        one.kernel("end", 990 * US, 10 * US, launched=500 * US)
        ranks.append(one)
    return analyze(write(ranks, folder), cache=False)


@pytest.mark.parametrize("with_layers", [True, False])
def test_rows_of_grouped_products_are_what_ranks_received(tmp_path: Path, with_layers: bool) -> None:
    load = analysed(tmp_path, {0: [100, 300], 1: [300, 100]}, with_layers=with_layers).load
    assert load is not None
    assert load.source == "grouped_gemm"
    assert [(layer.layer, layer.rank_tokens) for layer in load.layers] == [(0, (100.0, 300.0)), (1, (300.0, 100.0))]
    assert load.maxvio_rank == pytest.approx(0.5)
    assert load.layers[0].maxvio_expert is None


def test_ranks_that_recorded_different_numbers_of_layers_tell_no_load(tmp_path: Path) -> None:
    assert analysed(tmp_path, {0: [100, 300], 1: [300]}).load is None
