"""A loop of one's own, observed by the hooks and analysed: what it hands over is what the views show."""

from __future__ import annotations

from pathlib import Path

import pytest

from moescope.views.build import analyze

torch = pytest.importorskip("torch")
hooks = pytest.importorskip("moescope_hooks")


def test_counts_of_a_rank_that_exchanges_no_tokens_are_its_load(tmp_path: Path) -> None:
    """No expert groups are written down, and no all-to-all is recorded: the rank computes all experts itself."""
    model = torch.nn.Linear(4, 4)
    counts = torch.tensor([10, 2, 3, 1])
    schedule = hooks.Schedule(start=1, steps=1)
    with hooks.observe(model, out=tmp_path / "run", profile=schedule, measure_clock=False) as obs:
        for _step in range(3):
            obs.microbatch()
            model(torch.ones(8, 4)).sum().backward()
            obs.expert_counts(0, counts)
            obs.step(loss=1.0)
    load = analyze(tmp_path / "run").load
    assert load is not None
    assert load.source == "telemetry"
    assert load.layers[0].expert_tokens == (10, 2, 3, 1)
    assert load.layers[0].rank_tokens == (16,)
