"""Pipeline stages: who holds what, the order of passes, and messages in time and in the traces."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from moescope.simulate import SimConfig, simulate
from moescope.simulate.config import ConfigError
from moescope.simulate.groups import groups_of
from moescope.simulate.program import HostWork, Join, Kernel, Op, Transfer
from moescope.simulate.scenario import scenarios_of
from moescope.simulate.simulation import Simulation, run_simulation
from moescope.simulate.step import build_step
from moescope.simulate.truth import collectives, truth_of
from moescope.telemetry import open_telemetry

from .conftest import TINY, tiny


def staged(*faults: str, **fields: Any) -> SimConfig:
    return tiny(*faults, **{"pipeline": 2, "microbatches": 3, **fields})


@pytest.fixture(scope="module")
def run() -> Simulation:
    return run_simulation(staged())


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate(staged(), tmp_path_factory.mktemp("pipeline") / "run")


def test_stages_are_runs_of_ranks_and_of_layers_and_expert_groups_lie_within() -> None:
    groups = groups_of(staged(ranks=16, ep_size=2, pipeline=2))
    assert groups["dp"].members.tolist() == [list(range(8)), list(range(8, 16))]
    assert groups["pp"].members.tolist() == [[rank, rank + 8] for rank in range(8)]
    assert groups["ep"].members.tolist() == [[rank, rank + 1] for rank in range(0, 16, 2)]
    assert groups["edp"].members.tolist() == [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]]
    names = [group.name(index) for group in groups.values() for index in range(len(group.members))]
    assert names == [str(number) for number in range(len(names))]


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_every_layer_is_held_once_and_shares_differ_by_one_at_most(stages: int) -> None:
    config = staged(ranks=6, ep_size=1, pipeline=stages)
    held = [list(config.layers_of(stage)) for stage in range(stages)]
    assert [layer for layers in held for layer in layers] == list(range(TINY.num_layers))
    assert max(map(len, held)) - min(map(len, held)) <= 1
    assert all(layer in held[config.stage_of_layer(layer)] for layer in range(TINY.num_layers))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"pipeline": 3}, "must divide ranks"),
        ({"ep_size": 4}, "ranks of a stage"),
        ({"ranks": 4, "pipeline": 4}, "as many layers"),
        ({"overlap": True}, "overlap and pipeline"),
        ({"pipeline": 0}, "at least 1"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        staged(**fields)


def passes(ops: list[Op]) -> str:
    """One stage's passes in order, ``F0 F1 B0 B1``: by the first attention kernel of each."""
    found: list[str] = []
    for op in ops:
        if isinstance(op, Kernel) and op.span is not None and op.span.phase == "attention":
            name = f"{'B' if op.span.backward else 'F'}{op.span.microbatch}"
            found += [name] if found[-1:] != [name] else []
    return " ".join(found)


def test_one_forward_one_backward() -> None:
    config = staged(ranks=6, ep_size=2, pipeline=3, microbatches=4)
    program, _ = build_step(config, scenarios_of(config), 0)
    by_stage = [passes([op for op in program.ops if op.stage == stage]) for stage in range(3)]
    assert by_stage == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]


@pytest.mark.parametrize("microbatches", [1, 2, 7])
def test_nobody_waits_for_a_message_before_both_sides_are_launched(microbatches: int) -> None:
    config = staged(ranks=3, ep_size=1, pipeline=3, microbatches=microbatches)
    program, _ = build_step(config, scenarios_of(config), 0)
    sides: dict[tuple[int, int, bool], list[bool]] = defaultdict(list)
    for op in program.ops:
        if isinstance(op, Transfer):
            sides[op.key].append(op.sends)
        elif isinstance(op, Join) and isinstance(op.exchange, Transfer):
            assert sorted(sides[op.exchange.key]) == [False, True]
    assert len(sides) == 2 * 2 * microbatches


def test_nothing_arrives_before_it_was_sent_and_work_waits_for_it(run: Simulation) -> None:
    messages = [c for c in collectives(run.groups, run.run.records) if c.kind == "p2p"]
    assert len(messages) == 2 * 2 * 2 * 3
    for message in messages:
        assert (message.end > message.start.max()).all()
        assert (message.arrival_wait == message.start.max() - message.start).all()
        assert (message.removable_wait <= message.arrival_wait).all()
    for rank in range(4):
        free = 0
        for record in run.records_of(rank):
            if isinstance(record.op, Transfer):
                free = int(record.end[rank])
            elif isinstance(record.op, Kernel):
                assert record.start[rank] >= free


def test_ranks_do_what_is_of_their_stage_alone(run: Simulation) -> None:
    for rank in range(4):
        layers = {op.span.layer for op in (r.op for r in run.records_of(rank)) if op.span and op.span.layer is not None}
        assert layers == set(run.config.layers_of(run.config.stage_of(rank)))
        phases = {op.span.phase for op in (r.op for r in run.records_of(rank)) if op.span}
        assert ("head" in phases) == (rank >= 2)


def test_traces_record_both_sides_of_messages(path: Path) -> None:
    kernels = []
    for rank in range(4):
        trace = json.loads(gzip.decompress((path / "traces" / f"rank{rank}.json.gz").read_bytes()))
        assert {g["pg_desc"] for g in trace["distributedInfo"]["pg_config"]} == {"default_pg", "ep", "dp", "pp"}
        found = [e for e in trace["traceEvents"] if e.get("args", {}).get("Collective name") in {"send", "recv"}]
        kernels += [(rank, e) for e in found if e["cat"] == "kernel"]
        assert len([e for e in found if e["name"] == "record_param_comms"]) == 2 * 2 * 3
        numbers = [e["args"]["Seq"] for e in found if e["cat"] == "kernel"]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert {e["name"].split("(")[0] for _, e in kernels} == {"ncclDevKernel_SendRecv"}
    ends = {(rank, e["args"].get("Dst Rank"), e["args"].get("Src Rank")) for rank, e in kernels}
    assert ends == {(0, 2, None), (0, None, 2), (2, 0, None), (2, None, 0), (1, 3, None), (1, None, 3), (3, 1, None),
                    (3, None, 1)}  # fmt: skip


def test_telemetry_counts_a_rank_s_own_layers_and_no_messages(path: Path) -> None:
    telemetry = open_telemetry(path)
    assert telemetry is not None
    assert set(telemetry.collective["phase"].drop_nulls()) >= {"dispatch", "combine", "grad_reduce"}
    assert telemetry.collective["phase"].null_count() == 0
    for rank, layers in ((0, {1}), (3, {2})):
        load = telemetry.expert_load.filter(pl.col("rank") == rank)
        assert set(load["layer"]) == layers
        assert set(load["microbatch"]) == {0, 1, 2}
    assert json.loads((path / "run.json").read_text())["parallel"]["pp_size"] == 2


def test_a_stall_of_all_ranks_strikes_each_stage() -> None:
    run = run_simulation(staged("gc_pause:rank=-1,ms=3", "allocator_stall:rank=-1,ms=2,times=1"))
    stalls = [r for r in run.run.records if isinstance(r.op, HostWork) and r.op.inserted]
    length = np.zeros(4)
    for record in stalls:
        mine = np.arange(4) // 2 == record.op.stage
        length += np.where(mine, record.cpu_end - record.cpu_start, 0)
    assert length == pytest.approx(2 * (3e6 + 2e6))


def test_a_skew_is_the_hot_rank_s_of_each_stage() -> None:
    run = run_simulation(staged("expert_skew:rank=1,factor=3"))
    truth: Any = truth_of(run, collectives(run.groups, run.run.records))
    assert sorted(truth["faults"][0]["ranks"]) == [1, 3]
    assert truth["pp_size"] == 2


def test_what_the_other_stage_s_waiting_takes_up_costs_little() -> None:
    """The second stage computes the head too; a pause of the first is taken up in part."""
    cost = {}
    for stage, rank in enumerate((0, 2)):
        run = run_simulation(staged(f"slow_rank:rank={rank},factor=1.2", model=TINY, microbatches=6))
        truth: Any = truth_of(run, collectives(run.groups, run.run.records))
        cost[stage] = truth["faults"][0]["cost_ns_per_step"]
    assert cost[0] > 0
    assert cost[1] > 0
    assert cost[0] != pytest.approx(cost[1], rel=0.05)
