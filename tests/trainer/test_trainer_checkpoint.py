"""Checkpoints: a resumed run is the run that was not interrupted, on any layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import rank_jobs
from miniature import alone, losses_of, mini_config, mini_trainer, resumed_losses
from rank_pool import RankPool

from moescope.errors import DataMissingError, InputUnreadableError
from moescope.trainer import checkpoint

BIAS = {"balance": "bias", "bias_update_rate": 0.05}
CONFIG = mini_config(moe=BIAS)


@pytest.fixture(scope="module")
def saved(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """A run of 4 ranks that share one set of experts, and the losses after its checkpoint."""
    out = tmp_path_factory.mktemp("saved")
    return out, ranks.run(rank_jobs.save_and_go_on, CONFIG, out, 4)[0]


def test_resuming_is_exact(ranks: RankPool, saved: tuple[Path, list[float]]) -> None:
    out, losses = saved
    assert ranks.run(rank_jobs.load_and_go_on, CONFIG, out, 4) == [losses] * 4


@pytest.mark.parametrize("ep_size", [1, 2])
def test_another_expert_group_size_goes_on_with_the_same_losses(
    ranks: RankPool, saved: tuple[Path, list[float]], ep_size: int
) -> None:
    out, losses = saved
    assert ranks.run(rank_jobs.load_and_go_on, CONFIG, out, ep_size)[0] == pytest.approx(losses, rel=2e-5)


@pytest.mark.parametrize("sections", [{"parallel": {"tp_size": 2}}, {"train": {"shard_optimizer": True}}])
def test_a_checkpoint_fits_weights_that_are_shared_out_and_theirs_fits_one_rank(
    ranks: RankPool, saved: tuple[Path, list[float]], tmp_path: Path, sections: dict[str, dict[str, Any]]
) -> None:
    out, losses = saved
    config = mini_config(moe=BIAS, **sections)
    assert ranks.run(rank_jobs.load_and_go_on, config, out, 2)[0] == pytest.approx(losses, rel=2e-5)
    assert ranks.run(rank_jobs.save_and_go_on, config, tmp_path, 2)[0] == pytest.approx(losses, rel=2e-5)
    assert ranks.run(rank_jobs.load_and_go_on, CONFIG, tmp_path, 1)[0] == pytest.approx(losses, rel=2e-5)


def test_one_rank_goes_on_where_four_stopped(saved: tuple[Path, list[float]]) -> None:
    out, losses = saved
    assert resumed_losses(mini_trainer(CONFIG, alone()), out) == pytest.approx(losses, rel=2e-5)


def test_random_draws_go_on_too(tmp_path: Path) -> None:
    config = mini_config(moe={"noise": 0.5})
    trainer = mini_trainer(config, alone())
    losses_of(trainer, 2)
    checkpoint.save(trainer, tmp_path, 2, keep=1)
    losses = [float(trainer.train_step(step, None)[0][0]) for step in (2, 3, 4)]
    assert resumed_losses(mini_trainer(config, alone()), tmp_path) == losses


def test_only_the_newest_are_kept_and_half_written_ones_do_not_count(tmp_path: Path) -> None:
    trainer = mini_trainer(mini_config(), alone())
    for step in (1, 2, 3):
        checkpoint.save(trainer, tmp_path, step, keep=2)
    (tmp_path / "checkpoints" / "step-00000009").mkdir()
    assert [p.name for p in checkpoint.checkpoints_in(tmp_path)] == ["step-00000002", "step-00000003"]
    assert checkpoint.latest_checkpoint(tmp_path).name == "step-00000003"


def test_what_cannot_be_resumed_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataMissingError, match="no checkpoint to resume from"):
        checkpoint.latest_checkpoint(tmp_path)
    folder = checkpoint.save(mini_trainer(mini_config(), alone()), tmp_path, 1, keep=1)
    other = mini_trainer(mini_config(moe={"expert_hidden_dim": 16}), alone())
    with pytest.raises(InputUnreadableError, match="does not fit this model"):
        checkpoint.load(other, folder)
    (folder / checkpoint.PROGRESS).write_text("{")
    with pytest.raises(InputUnreadableError, match="not a whole checkpoint"):
        checkpoint.load(other, folder)
