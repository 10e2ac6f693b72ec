"""Expert parallelism changes where experts live, never what is learned."""

from __future__ import annotations

import pytest
import rank_jobs
from miniature import alone, losses_of, mini_config, mini_trainer
from rank_jobs import STEPS
from rank_pool import RankPool

from moescope.trainer.mesh import expert_groups


@pytest.fixture(scope="module")
def single_rank() -> tuple[list[float], dict[str, float]]:
    """What one rank alone learns from the same global batch."""
    trainer = mini_trainer(mini_config(), alone())
    return losses_of(trainer, STEPS), trainer.validate()


@pytest.mark.parametrize(
    ("ep_size", "layout"), [(4, "contiguous"), (2, "contiguous"), (2, "strided"), (1, "contiguous")]
)
def test_every_expert_group_size_gives_the_losses_of_one_rank(
    ranks: RankPool, single_rank: tuple[list[float], dict[str, float]], ep_size: int, layout: str
) -> None:
    results = ranks.run(rank_jobs.train, mini_config(), ep_size, layout)
    assert all(result == results[0] for result in results)
    losses, validation = results[0]
    assert losses == pytest.approx(single_rank[0], rel=2e-5)
    assert validation == pytest.approx(single_rank[1], rel=2e-5)


def test_a_balance_over_the_global_batch_does_not_depend_on_the_expert_groups(ranks: RankPool) -> None:
    config = mini_config(moe={"balance": "aux_global", "balance_coefficient": 0.1})
    together, apart = (ranks.run(rank_jobs.train, config, ep_size, "contiguous")[0] for ep_size in (4, 1))
    assert together[0] == pytest.approx(apart[0], rel=2e-5)


def test_expert_groups_cover_every_rank_once() -> None:
    assert expert_groups(8, 4, "contiguous") == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert expert_groups(8, 4, "strided") == [(0, 2, 4, 6), (1, 3, 5, 7)]


def test_rows_arrive_in_order_and_gradients_return_even_from_nobody(ranks: RankPool) -> None:
    assert [ranks.run(rank_jobs.exchange, 2, overlapped) for overlapped in (False, True)] == [[True] * 4] * 2
