"""Ways to save memory and to hide communication: each alone and in combination learns what the plain run learns."""

from __future__ import annotations

from typing import Any

import pytest
import rank_jobs
from miniature import alone, losses_of, mini_config, mini_trainer
from rank_pool import RankPool

STEPS = 5
TENSOR = {"parallel": {"tp_size": 2}}
HALVES = {"train": {"two_batch_overlap": True}}
SHARDED = {"train": {"shard_optimizer": True}}
THRIFTY = {"offload_activations": True, "recompute": "experts"}


@pytest.fixture(scope="module")
def plain() -> tuple[list[float], dict[str, float]]:
    """What one rank alone learns from the same global batch."""
    trainer = mini_trainer(mini_config(), alone())
    return losses_of(trainer, STEPS), trainer.validate()


@pytest.mark.parametrize(
    ("ep_size", "layout", "sections"),
    [
        (4, "contiguous", TENSOR),
        (2, "strided", TENSOR),
        (4, "contiguous", HALVES),
        (2, "contiguous", SHARDED),
        (4, "contiguous", SHARDED),
        (2, "contiguous", {"train": {**THRIFTY, "shard_optimizer": True}}),
        (2, "contiguous", {"train": {**THRIFTY, "two_batch_overlap": True, "shard_optimizer": True}}),
        (2, "contiguous", {**TENSOR, "train": {**THRIFTY, "two_batch_overlap": True}}),
        (2, "contiguous", {**TENSOR, "train": {"recompute": "full"}}),
        (1, "contiguous", {"train": {"recompute": "full", "shard_optimizer": True}}),
        (2, "contiguous", {**HALVES, "control": {"slow_rank": 1, "slow_factor": 1.5}}),
    ],
)
def test_every_combination_learns_what_one_rank_learns(
    ranks: RankPool,
    plain: tuple[list[float], dict[str, float]],
    ep_size: int,
    layout: str,
    sections: dict[str, dict[str, Any]],
) -> None:
    results = ranks.run(rank_jobs.train, mini_config(**sections), ep_size, layout, STEPS)
    assert all(result == results[0] for result in results)
    losses, validation = results[0]
    assert losses == pytest.approx(plain[0], rel=2e-5)
    assert validation == pytest.approx(plain[1], rel=2e-5)


@pytest.mark.parametrize("balance", ["aux_global", "bias"])
def test_halves_are_balanced_as_the_whole(ranks: RankPool, balance: str) -> None:
    moe = {"balance": balance, "balance_coefficient": 0.1, "bias_update_rate": 0.05}
    whole, halves = (
        ranks.run(rank_jobs.train, mini_config(moe=moe, **sections), 2, "contiguous", STEPS)[0]
        for sections in ({}, HALVES)
    )
    assert halves[0] == pytest.approx(whole[0], rel=2e-5)


@pytest.mark.parametrize("sections", [TENSOR, SHARDED])
def test_shared_out_weights_go_with_bfloat16_and_grouped_experts(
    ranks: RankPool, sections: dict[str, dict[str, Any]]
) -> None:
    """Losses agree to bfloat16's rounding, 2^-9."""
    moe = {"expert_compute": "grouped"}
    plain, shared_out = (
        ranks.run(
            rank_jobs.train,
            mini_config(**{**s, "train": {**s.get("train", {}), "dtype": "bfloat16"}, "moe": moe}),
            2,
            "contiguous",
            2,
        )[0]
        for s in ({}, sections)
    )
    assert shared_out[0] == pytest.approx(plain[0], rel=2**-9)
