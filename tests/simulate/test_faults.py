"""Faults as text, and those that don't fit."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from moescope.errors import MoescopeError
from moescope.simulate import Model, SimConfig, parse_fault
from moescope.simulate.faults import KINDS, SlowRank
from moescope.simulate.simulation import run_simulation
from moescope.simulate.truth import collectives, truth_of

from .conftest import tiny


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_described_fault_is_read_back(kind):
    fault = KINDS[kind]()
    assert parse_fault(kind) == fault
    assert parse_fault(fault.describe()) == fault


def test_values_take_their_types():
    fault = parse_fault("slow_rank:rank=3,factor=2,shape=ramp")
    assert fault == SlowRank(rank=3, factor=2.0, shape="ramp")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("nonsense", "no fault is called"),
        ("slow_rank:speed=2", "cannot read"),
        ("slow_rank:rank", "cannot read"),
        ("slow_rank:rank=x", "type int"),
    ],
)
def test_what_cannot_be_read_is_said(text, part):
    with pytest.raises(MoescopeError, match=part) as caught:
        parse_fault(text)
    assert caught.value.hint or "type" in part


@pytest.mark.parametrize(
    "text",
    [
        "slow_rank:rank=4", "slow_rank:shape=odd", "slow_rank:factor=0", "slow_host:host=2", "slow_link:tier=none",
        "host_jitter:share=-1", "host_jitter:share=nan", "lost_events:which=all", "missing_ranks:ranks=9",
        "missing_ranks:ranks=0+1+2+3", "tiny_experts:factor=1",
    ],
)  # fmt: skip
def test_faults_that_do_not_fit_the_run_are_refused(text):
    with pytest.raises(MoescopeError):
        tiny(text)


@pytest.mark.parametrize(
    "fields",
    [{"ranks": 0}, {"ep_size": 3}, {"model": Model(num_experts=6)}, {"model": Model(num_layers=1)}, {"steps": 0}],
)
def test_runs_that_cannot_be_built_are_refused(fields):
    with pytest.raises(MoescopeError):
        tiny(**fields)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_minus_one_is_all_ranks_or_refused(kind):
    fault = KINDS[kind]
    if "rank" not in {field.name for field in dataclasses.fields(fault)}:
        return
    if fault.for_all:
        assert tiny(f"{kind}:rank=-1").faults[0].culprits(4) == [0, 1, 2, 3]
    else:
        with pytest.raises(MoescopeError, match="rank must be"):
            tiny(f"{kind}:rank=-1")


def test_a_stall_of_all_ranks_makes_none_wait():
    one, everyone = (
        run_simulation(tiny(f"data_loader_stall:ms=5,rank={rank}", steps=1, kernel_noise=0.0)) for rank in (1, -1)
    )
    longest = [max(int(c.arrival_wait.max()) for c in collectives(s.groups, s.run.records)) for s in (one, everyone)]
    assert longest[0] > 4_500_000
    assert longest[1] < 500_000


def test_shapes_of_a_slow_rank():
    at = np.array([0.0, 10e6, 20e6, 60e6])
    scales = {
        shape: [
            float(fault.compute_scale(np.full(2, t))[1])  # type: ignore[index]
            for t in at
            for fault in [SlowRank(rank=1, factor=3.0, shape=shape, period_ms=40.0)]
        ]
        for shape in ("constant", "ramp", "periodic")
    }
    assert scales == {"constant": [3, 3, 3, 3], "ramp": [1, 1.5, 2, 3], "periodic": [3, 3, 1, 1]}


def faults_in_truth(*faults: str, **fields: object) -> list[dict]:
    simulation = run_simulation(tiny(*faults, **fields))
    return truth_of(simulation, collectives(simulation.groups, simulation.run.records))["faults"]  # type: ignore[return-value]


def test_truth_names_the_rank_with_the_hot_experts():
    (row,) = faults_in_truth("expert_skew:rank=2,factor=3", ranks_per_host=4)
    assert (row["cause"], row["rank"], row["ranks"], row["layer"]) == ("expert_load", 2, [2], None)
    costs = row["costs_ns_per_step"]
    assert 0 < costs["volume_imbalance"] < costs["expert_load"]
    assert sum(costs.values()) == pytest.approx(row["cost_ns_per_step"])


def test_truth_names_one_hot_rank_per_group():
    (row,) = faults_in_truth("expert_skew:rank=1,factor=3", ep_size=2)
    assert row["rank"] is None
    assert sorted(row["ranks"]) == [1, 3]


def test_costs_of_combined_faults_are_each_against_the_run_without_it():
    rows = faults_in_truth("slow_rank:rank=1,factor=2", "data_loader_stall:rank=1,ms=5", "clock")
    assert [row["cause"] for row in rows] == ["slow_rank", "host", None]
    assert rows[0]["cost_ns_per_step"] > 1e6
    assert rows[1]["cost_ns_per_step"] == pytest.approx(5e6, rel=0.1)
    assert rows[2]["cost_ns_per_step"] == 0


def test_run_says_how_to_make_it_again():
    config = SimConfig(ranks=16, seed=5, overlap=True, faults=(parse_fault("clock"),), model=Model(num_layers=4))
    assert config.arguments() == [
        "--ranks=16", "--layers=4", "--overlap", "--seed=5", "--fault=clock:offset_ms=50.0,drift_ppm=30.0",
    ]  # fmt: skip
    assert dataclasses.replace(config, ranks=8, seed=0, overlap=False, faults=(), model=Model()).arguments() == []
