"""Dense baselines of equal weight, and experts made of a dense model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from miniature import alone, losses_of, mini_config, mini_corpus, mini_trainer

from moescope.errors import DataMissingError, MoescopeError
from moescope.trainer import checkpoint
from moescope.trainer.flops import model_cost
from moescope.trainer.loop import Trainer
from moescope.trainer.model import Transformer
from moescope.trainer.placement import placements_of


@pytest.mark.parametrize("shared", [0, 1])
def test_a_dense_baseline_weighs_what_a_token_passes_or_what_there_is(shared: int) -> None:
    """To within half a hidden unit per layer: 3 * 32 / 2 weights in each of two."""
    moe = {"num_shared_experts": shared}
    sparse = model_cost(mini_config(moe=moe))
    for match, wanted in (("active", sparse.active_params), ("total", sparse.total_params)):
        config = mini_config(moe=moe, model={"dense_baseline": match})
        cost = model_cost(config)
        model = Transformer(config, alone(), placements_of(config, 1))
        assert cost.total_params == cost.active_params == sum(p.numel() for p in model.parameters())
        assert abs(cost.total_params - wanted) <= 2 * 3 * 32 / 2
        assert model.routers() == []


def test_a_dense_baseline_learns_and_reports_no_balance() -> None:
    trainer = mini_trainer(mini_config(model={"dense_baseline": "active"}), alone())
    losses = losses_of(trainer, 6)
    assert losses[-1] < losses[0] - 0.2
    assert float(trainer.train_step(6, None)[0][1]) == 0.0


def test_finer_experts_cost_the_same_apart_from_their_router() -> None:
    coarse, fine = (
        model_cost(mini_config(moe={"num_experts": 8 * n, "top_k": 2 * n, "expert_hidden_dim": 32 // n}))
        for n in (1, 4)
    )
    routers = 2 * 32 * (32 - 8)
    assert fine.active_params - coarse.active_params == fine.total_params - coarse.total_params == routers


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """A dense model after 3 steps whose upper blocks are 64 wide, and its validation losses."""
    out = tmp_path_factory.mktemp("dense")
    trainer = mini_trainer(mini_config(model={"num_dense_layers": 3}), alone())
    losses_of(trainer, 3)
    checkpoint.save(trainer, out, 3, keep=1)
    return out, list(trainer.validate().values())


def test_copies_of_a_dense_block_start_as_the_dense_model(dense: tuple[Path, list[float]]) -> None:
    config = mini_config(model={"upcycle_from": str(dense[0])}, moe={"expert_hidden_dim": 64})
    trainer = mini_trainer(config, alone())
    assert list(trainer.validate().values()) == pytest.approx(dense[1], rel=1e-5)
    losses = losses_of(trainer, 3)
    assert losses[-1] < losses[0]


def test_slices_of_a_dense_block_sum_to_it(dense: tuple[Path, list[float]]) -> None:
    """Experts 0 and 1 are the two halves, 2 and 3 again; a half's output is doubled, so that two halves average."""
    config = mini_config(model={"upcycle_from": str(checkpoint.latest_checkpoint(dense[0]))})
    copies = mini_config(model={"upcycle_from": str(dense[0])}, moe={"expert_hidden_dim": 64})
    sliced, whole = (mini_trainer(c, alone()).model.layers[1].ffn.experts for c in (config, copies))
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    first, second, third = (sliced(x, [5 if e == expert else 0 for e in range(8)]) for expert in (0, 1, 2))
    torch.testing.assert_close((first + second) / 2, whole(x, [5] + [0] * 7), rtol=1e-4, atol=1e-6)
    assert torch.equal(first, third)


def test_a_resumed_run_needs_the_dense_model_no_more(tmp_path: Path) -> None:
    config = mini_config(model={"upcycle_from": str(tmp_path / "deleted")})
    assert len(Trainer(config, alone(), mini_corpus(), to_resume=True).routers) == 2


def test_what_cannot_be_upcycled_is_refused(dense: tuple[Path, list[float]], tmp_path: Path) -> None:
    source = str(dense[0])
    refused = [
        ({"upcycle_from": str(tmp_path)}, {}, DataMissingError, "no checkpoint"),
        (
            {"upcycle_from": source},
            {"expert_hidden_dim": 48},
            MoescopeError,
            "must divide the dense model",
        ),
        ({"upcycle_from": source, "dim": 64}, {}, MoescopeError, "the model's is"),
        ({"upcycle_from": source, "num_layers": 4}, {}, MoescopeError, "has no weight layers.3"),
        ({"upcycle_from": source}, {"num_shared_experts": 1}, MoescopeError, "num_shared_experts = 1: must be 0"),
        ({"upcycle_from": source, "dense_baseline": "total"}, {}, MoescopeError, "needs experts"),
    ]
    for model, moe, kind, message in refused:
        with pytest.raises(kind, match=message):
            mini_trainer(mini_config(model=model, moe=moe), alone())
