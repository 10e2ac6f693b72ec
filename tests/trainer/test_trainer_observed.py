"""The trainer under observation: telemetry and traces of four ranks agree with what really happened."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import rank_jobs
from miniature import mini_config
from moescope_hooks.names import parse_range_name
from rank_pool import RankPool

from moescope.telemetry import Telemetry, open_telemetry

EP_SIZE = 2
CONFIG = mini_config()


@pytest.fixture(scope="module")
def run(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A run directory of 4 ranks in 2 expert groups, and what each rank saw."""
    out = tmp_path_factory.mktemp("run")
    return out, ranks.run(rank_jobs.observe_training, CONFIG, out, EP_SIZE)


@pytest.fixture(scope="module")
def telemetry(run: tuple[Path, list[Any]]) -> Telemetry:
    telemetry = open_telemetry(run[0])
    assert telemetry is not None
    assert telemetry.problems == []
    return telemetry


def test_losses_are_those_of_an_unobserved_run(ranks: RankPool, run: tuple[Path, list[Any]]) -> None:
    plain = ranks.run(rank_jobs.train, CONFIG, EP_SIZE, "contiguous")[0][0]
    assert [losses for losses, _ in run[1]] == [plain[:4]] * 4


def test_counts_are_those_of_every_forward_pass(run: tuple[Path, list[Any]], telemetry: Telemetry) -> None:
    for rank, (_, direct) in enumerate(run[1]):
        rows = telemetry.expert_load.filter(pl.col("rank") == rank).select("layer", "counts").rows()
        assert [[layer, *counts] for layer, counts in rows] == direct
        assert len(rows) == 4 * 2 * 2


def test_what_one_rank_sends_another_receives(telemetry: Telemetry) -> None:
    groups = {"0,1": [0, 1], "2,3": [2, 3]}
    exchanged = telemetry.collective.filter(pl.col("phase").is_in(["counts", "dispatch", "combine"]))
    names = {name: sorted(rows["rank"].unique().to_list()) for (name,), rows in exchanged.group_by("group")}
    assert sorted(names.values()) == list(groups.values())
    for (name, _), rows in exchanged.group_by("group", "seq"):
        sent = dict(rows.select("rank", "send_bytes").rows())
        received = dict(rows.select("rank", "recv_bytes").rows())
        members = names[str(name)]
        assert [received[r] for r in members] == [[sent[peer][i] for peer in members] for i in range(2)]
        assert rows.select("step", "microbatch", "layer", "phase", "backward").unique().height == 1


def test_every_collective_is_recorded_once_per_rank(telemetry: Telemetry) -> None:
    num_passes = 4 * 2 * 2
    for (rank,), rows in telemetry.collective.group_by("rank"):
        kinds = Counter(rows.select("phase", "backward").rows())
        grad_reduce = kinds.pop(("grad_reduce", False))
        assert grad_reduce % 4 == 0, f"rank {rank}"
        assert kinds == {
            (phase, backward): num_passes
            for phase, backward in [
                ("counts", False),
                ("dispatch", False),
                ("combine", False),
                ("dispatch", True),
                ("combine", True),
            ]
        }
        assert (rows["arrival_ns"] <= rows["end_ns"]).all()


def test_dispatched_bytes_are_the_counts_of_the_experts(telemetry: Telemetry) -> None:
    """Rows to a member times the row's size, from the counts of its four experts."""
    dispatch = telemetry.collective.filter((pl.col("phase") == "dispatch") & ~pl.col("backward"))
    both = dispatch.join(telemetry.expert_load, on=["rank", "step", "microbatch", "layer"])
    assert both.height == dispatch.height
    row_bytes = 32 * 4
    for sent, counts in both.select("send_bytes", "counts").rows():
        assert sent == [row_bytes * sum(counts[:4]), row_bytes * sum(counts[4:])]


@pytest.fixture(scope="module")
def trace(run: tuple[Path, list[Any]]) -> dict[str, Any]:
    with gzip.open(run[0] / "traces" / "rank2.json.gz") as file:
        trace: dict[str, Any] = json.load(file)
    return trace


def test_a_trace_says_who_recorded_it(trace: dict[str, Any]) -> None:
    info = trace["distributedInfo"]
    assert (info["rank"], info["world_size"]) == (2, 4)
    by_description = {group["pg_desc"]: group["ranks"] for group in info["pg_config"]}
    assert by_description["expert1"] == [2, 3]
    assert by_description["replica0"] == [0, 2]
    assert trace["moescope"]["steps"] == [1, 2]
    assert trace["host_name"]


def test_a_trace_has_every_phase_of_every_layer_and_microbatch(trace: dict[str, Any]) -> None:
    names = Counter(e["name"] for e in trace["traceEvents"] if parse_range_name(str(e["name"])))
    for layer, phases in ((0, ["attention", "dense"]), (2, ["attention", "router", "dispatch", "experts", "combine"])):
        for phase in phases:
            for microbatch in range(2):
                assert names[f"moescope::L{layer}.mb{microbatch}.{phase}"] == 2
                assert names[f"moescope::L{layer}.mb{microbatch}.{phase}.bwd"] == 2
    assert names["moescope::mb1.head"] == names["moescope::grad_reduce"] == names["moescope::optimizer"] == 2


def test_a_trace_carries_the_splits(trace: dict[str, Any], telemetry: Telemetry) -> None:
    """The dispatch inside its range has the splits that telemetry has, in rows."""
    events = trace["traceEvents"]
    outer = next(e for e in events if e["name"] == "moescope::L1.mb0.dispatch")
    start, end = outer["ts"], outer["ts"] + outer["dur"]
    inner = [e for e in events if e["name"] == "c10d::alltoall_base_" and start <= e["ts"] < end]
    assert len(inner) == 1
    recv, send = (json.loads(inner[0]["args"]["Concrete Inputs"][i]) for i in (3, 4))
    row = telemetry.collective.filter(
        (pl.col("rank") == 2) & (pl.col("step") == 1) & (pl.col("microbatch") == 0) & (pl.col("layer") == 1),
        pl.col("phase") == "dispatch",
        ~pl.col("backward"),
    ).row(0, named=True)
    assert [n * 128 for n in send] == row["send_bytes"]
    assert [n * 128 for n in recv] == row["recv_bytes"]
    waits = [e for e in events if e["name"] == "_c10d_functional::wait_tensor" and start <= e["ts"] < end]
    assert len(waits) == 1


def test_halves_are_recorded_as_microbatches_of_their_own(
    ranks: RankPool, run: tuple[Path, list[Any]], telemetry: Telemetry, tmp_path: Path
) -> None:
    """Twice as many exchanges of the same rows in all, each begun in a range of its phase and ended in another."""
    config = mini_config(train={"two_batch_overlap": True})
    halves = ranks.run(rank_jobs.observe_training, config, tmp_path, EP_SIZE)
    assert halves[0][0] == pytest.approx(run[1][0][0], rel=2e-5)
    recorded = open_telemetry(tmp_path)
    assert recorded is not None
    assert recorded.problems == []
    key = ["rank", "step", "layer", "phase", "backward"]
    exchanges = [
        table.collective.filter(pl.col("phase").is_in(["dispatch", "combine"]))
        .group_by(key)
        .agg(pl.len(), microbatches=pl.col("microbatch").unique().sort(), bytes=pl.col("send_bytes").list.sum().sum())
        .sort(key)
        for table in (telemetry, recorded)
    ]
    assert exchanges[0].select(*key, "bytes").equals(exchanges[1].select(*key, "bytes"))
    assert set(exchanges[0]["len"]) == {2}
    assert set(exchanges[1]["len"]) == {4}
    assert exchanges[1]["microbatches"].to_list() == [[0, 1, 2, 3]] * exchanges[1].height
    with gzip.open(tmp_path / "traces" / "rank2.json.gz") as file:
        names = Counter(event["name"] for event in json.load(file)["traceEvents"])
    for microbatch in range(4):
        for phase in ("dispatch", "combine", "dispatch.bwd", "combine.bwd"):
            assert names[f"moescope::L2.mb{microbatch}.{phase}"] == 2 * 2
        assert names[f"moescope::L2.mb{microbatch}.experts"] == 2
