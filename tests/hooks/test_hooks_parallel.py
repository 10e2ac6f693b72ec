"""Wrapped models: DDP, FSDP2, chunks of a pipeline stage. Every rank counts its own tokens."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import rank_jobs
import torch
from moescope_hooks import observe
from rank_pool import RankPool
from toy_moe import DIM, ToyModel

from moescope.telemetry import open_telemetry


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp2", "fsdp2-recomputed"])
def test_wrapped_models_are_counted(ranks: RankPool, tmp_path: Path, wrapper: str) -> None:
    direct = ranks.run(rank_jobs.observe_wrapped, tmp_path, wrapper)
    telemetry = open_telemetry(tmp_path)
    assert telemetry is not None
    assert telemetry.problems == []
    for rank, by_layer in enumerate(direct):
        for layer, counts in enumerate(by_layer):
            rows = telemetry.expert_load.filter(pl.col("rank") == rank, pl.col("layer") == layer)
            assert rows["counts"].to_list() == counts
    whole = 4 * sum(p.numel() for p in ToyModel().parameters())
    held = telemetry.step.filter(pl.col("step") == 0)["parameter_bytes"].to_list()
    if wrapper == "ddp":
        assert held == [whole] * 4
    else:
        assert sum(held) == whole


def test_chunks_of_a_pipeline_take_the_microbatches_up_one_after_the_other(tmp_path: Path) -> None:
    """Two chunks of one rank; the first runs all microbatches before the second does. Nothing is marked."""
    torch.set_num_threads(1)
    chunks = [ToyModel(), ToyModel()]
    for layer in chunks[1].layers:
        layer.layer += 2
    with observe(chunks, out=tmp_path) as obs:
        inputs = [torch.randn(16, DIM) for _ in range(3)]
        for chunk in chunks:
            for x in inputs:
                chunk(x).backward()
        obs.step()
    telemetry = open_telemetry(tmp_path)
    assert telemetry is not None
    assert telemetry.expert_load.select("microbatch", "layer").rows() == [(m, n) for m in range(3) for n in range(4)]
    counted = [module.counted[m] for m in range(3) for chunk in chunks for module in chunk.layers]
    assert telemetry.expert_load["counts"].to_list() == counted
    assert any("microbatch markers" in problem for problem in telemetry.problems)
    assert telemetry.step["parameter_bytes"].to_list() == [8 * sum(p.numel() for p in chunks[0].parameters())]


def test_a_pipeline_may_say_which_microbatch_it_is(tmp_path: Path) -> None:
    model = ToyModel()
    with observe(model, out=tmp_path) as obs:
        for number in (2, 0, 1):
            obs.microbatch(number)
            model(torch.randn(16, DIM)).backward()
        obs.step()
    telemetry = open_telemetry(tmp_path)
    assert telemetry is not None
    rows = telemetry.expert_load.filter(pl.col("layer") == 0)
    assert rows["counts"].to_list() == [model.layers[0].counted[i] for i in (1, 2, 0)]
