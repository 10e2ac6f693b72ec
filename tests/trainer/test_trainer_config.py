"""Settings: where they come from, what is refused, and what is said about it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from moescope.errors import InputUnreadableError, MoescopeError
from moescope.trainer.config import Config
from moescope.trainer.presets import PRESETS, load_config, to_toml
from moescope.trainer.settings.control import ControlConfig
from moescope.trainer.settings.rules import ConfigError

HALVES = {"two_batch_overlap": True}


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_hold_on_four_ranks_and_survive_being_saved(preset: str, tmp_path: Path) -> None:
    config = load_config(preset)
    config.check_world(4)
    saved = tmp_path / "config.toml"
    saved.write_text(to_toml(config))
    assert load_config(preset, saved) == config


def test_later_layers_win(tmp_path: Path) -> None:
    toml = tmp_path / "mine.toml"
    toml.write_text("[moe]\ntop_k = 1\nnum_experts = 4\n[train]\nlearning_rate = 1\n")
    config = load_config("small", toml, ["moe.top_k=3", "moe.balance=none"], train={"steps": 7})
    assert (config.model.num_layers, config.moe.num_experts, config.moe.top_k) == (6, 4, 3)
    assert (config.moe.balance, config.train.learning_rate, config.train.steps) == ("none", 1.0, 7)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"moe": {"top_k": 17}}, "moe.top_k = 17: must lie between 1 and moe.num_experts = 16"),
        ({"moe": {"top_k": True}}, "moe.top_k = True: must be of type int"),
        ({"moe": {"tops": 2}}, "moe.tops = 2: no such key"),
        ({"mow": {"top_k": 2}}, "no such section"),
        ({"moe": {"capacity_pad": True}}, "moe.capacity_pad = True: needs moe.capacity_factor > 0"),
        ({"moe": {"num_groups": 3}}, "moe.num_groups = 3: must divide moe.num_experts = 16"),
        ({"moe": {"num_groups": 16, "top_groups": 1}}, "moe.top_groups = 1: must"),
        ({"moe": {"balance": "magic"}}, "must be one of none, aux_microbatch"),
        ({"model": {"dim": 12}}, "model.dim = 12: must be a multiple of 2 * model.num_heads = 8"),
        ({"train": {"beta2": 1.0}}, "train.beta2 = 1.0: must lie in [0, 1)"),
        ({"train": {"learning_rate": 0}}, "train.learning_rate = 0.0: must be positive"),
        ({"data": {"files": [1]}}, "data.files = [1]: must be a list of strings"),
        ({"profile": {"windows": 2, "every": 2}}, "profile.every = 2: must exceed profile.steps = 2"),
        ({"control": {"slow_factor": 0.5}}, "control.slow_factor = 0.5: must be at least 1"),
        ({"parallel": {"placement_file": "a", "placement_from": "b"}}, "must be empty with parallel.placement_file"),
        ({"train": {**HALVES, "microbatch_sequences": 3}}, "train.microbatch_sequences = 3: must be even"),
        ({"train": {**HALVES, "recompute": "full"}}, "train.two_batch_overlap = True: needs train.recompute"),
        ({"train": HALVES, "moe": {"capacity_factor": 1.0}}, "needs moe.capacity_factor = 0"),
        ({"train": HALVES, "moe": {"noise": 0.1}}, "needs moe.noise = 0 and control.routing = learned"),
        ({"train": HALVES, "control": {"routing": "zipf"}}, "needs moe.noise = 0 and control.routing = learned"),
        ({"train": {"offload_activations": True, "recompute": "full"}}, "recomputed layers keep nothing"),
        ({"train": {"shard_optimizer": True}, "parallel": {"tp_size": 2}}, "needs parallel.tp_size = 1"),
        (
            {"control": {"slow_rank": 0}, "parallel": {"tp_size": 2}},
            "control.slow_rank = 0: needs parallel.tp_size = 1",
        ),
        ({"control": {"slow_rank": 0}, "train": {"shard_optimizer": True}}, "a rank cannot repeat alone what several"),
        ({"model": {"dense_baseline": "half"}}, "must be one of none, active, total"),
    ],
)
def test_an_error_names_the_key_and_the_rule(sections: dict[str, dict[str, Any]], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("tiny", **sections)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"parallel": {"ep_size": 3}}, "parallel.ep_size = 3: must divide the 4 ranks"),
        ({"moe": {"num_experts": 6}}, "moe.num_experts = 6: must be a multiple of parallel.ep_size = 4"),
        ({"train": {"global_batch_sequences": 20}}, "must be a multiple of ranks * train.microbatch_sequences = 16"),
        ({"control": {"slow_rank": 4}}, "control.slow_rank = 4: must be one of the 4 ranks"),
        ({"parallel": {"tp_size": 3}}, "parallel.tp_size = 3: must divide the 4 ranks and model.num_heads = 4"),
        ({"profile": {"enabled": True, "start": 30}}, "profile.start = 30: must be one of the 30 steps"),
    ],
)
def test_what_does_not_fit_the_ranks_is_refused(sections: dict[str, dict[str, Any]], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("tiny", **sections).check_world(4)
    assert message in caught.value.message


@pytest.mark.parametrize("text", ["moe.top_k", "top_k=2", "moe.=2"])
def test_a_setting_without_its_parts_is_refused(text: str) -> None:
    with pytest.raises(MoescopeError, match=r"must be section\.key=value"):
        load_config("tiny", None, [text])


def test_an_unknown_preset_and_a_file_that_is_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be one of tiny, small, gpu"):
        load_config("huge")
    with pytest.raises(InputUnreadableError, match="cannot read"):
        load_config("tiny", tmp_path / "absent.toml")
    (tmp_path / "bad.toml").write_text("[moe")
    with pytest.raises(InputUnreadableError, match="not valid TOML"):
        load_config("tiny", tmp_path / "bad.toml")


def test_one_rank_alone_has_nobody_to_share_its_optimizer_with() -> None:
    with pytest.raises(ConfigError, match="needs more than one rank"):
        load_config("tiny", train={"shard_optimizer": True}).check_world(1)


def test_the_first_profiled_step_fits_the_run() -> None:
    assert Config().first_profiled_step() == 26
    assert load_config("tiny", train={"steps": 10}).first_profiled_step() == 8
    assert load_config("tiny", profile={"start": 3}).first_profiled_step() == 3


def test_controls_are_listed() -> None:
    assert ControlConfig().active() == []
    control = ControlConfig(router_bias=2.0, routing="zipf", slow_rank=1, host_stall_rank=0)
    assert [line.partition(":")[0] for line in control.active()] == [
        "router-bias",
        "forced-zipf-routing",
        "slow-rank",
        "host-stall",
    ]
    assert control.active()[0] == "router-bias: +2 on the experts of rank 0"


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_no_setting_takes_a_number_that_is_not_finite(value: str) -> None:
    floats = [
        f"{section.name}.{field.name}"
        for section in dataclasses.fields(Config)
        if dataclasses.is_dataclass(section.default_factory)
        for field in dataclasses.fields(section.default_factory)
        if field.type == "float"
    ]
    assert "control.router_bias" in floats
    for key in floats:
        with pytest.raises(ConfigError, match="must be a finite number"):
            load_config(settings=[f"{key}={value}"])
