"""What is written: linked events, matching splits, local clocks, the same bytes for the same seed."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from moescope.simulate import Network, simulate
from moescope.simulate.events import cut_list, micro
from moescope.simulate.run import trace_text
from moescope.simulate.simulation import run_simulation
from moescope.telemetry import open_telemetry
from moescope.trace import open_directory

from .conftest import tiny


def load(path: Path) -> dict:
    return json.loads(gzip.decompress(path.read_bytes()))


def contents(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    faults = ("expert_skew", "host_jitter:rank=1", "gc_pause:rank=-1", "clock", "lost_events:which=random")
    first, again, other = (
        contents(simulate(tiny(*faults, seed=seed, steps=1), tmp_path / name))
        for name, seed in (("a", 3), ("b", 3), ("c", 4))
    )
    assert first == again
    assert set(first) == set(other)
    assert first["truth.json"] != other["truth.json"]
    assert first["traces/rank0.json.gz"] != other["traces/rank0.json.gz"]


def test_the_reader_finds_nothing_to_complain_about(healthy_path):
    directory = open_directory(healthy_path)
    assert directory.problems == []
    assert [t.rank for t in directory.ranks] == [0, 1, 2, 3]
    for trace in directory.ranks:
        assert trace.problems == []
        assert trace.host == f"node{trace.rank // 2}"
        assert trace.world_size == 4
        assert {g.description for g in trace.groups.values()} == {"default_pg", "ep"}


def test_every_device_event_has_its_launch(healthy_path):
    events = load(healthy_path / "traces/rank1.json.gz")["traceEvents"]
    calls = {e["args"]["correlation"]: e for e in events if e.get("cat") == "cuda_runtime"}
    operations = {e["args"]["External id"]: e for e in events if e.get("cat") == "cpu_op"}
    flows = defaultdict(set)
    for event in events:
        if event.get("cat") == "ac2g":
            flows[event["id"]].add(event["ph"])
    device = [e for e in events if e.get("cat") in {"kernel", "gpu_memcpy"}]
    assert len(device) > 100
    for event in device:
        call = calls[event["args"]["correlation"]]
        assert call["ts"] < event["ts"]
        assert call["args"]["External id"] == event["args"]["External id"]
        operation = operations[event["args"]["External id"]]
        assert operation["ts"] <= call["ts"]
        assert call["ts"] + call["dur"] <= operation["ts"] + operation["dur"]
        assert flows[event["args"]["correlation"]] == {"s", "f"}


def test_ranges_hold_what_they_name(healthy_path):
    events = load(healthy_path / "traces/rank0.json.gz")["traceEvents"]
    ranges = [e for e in events if e["name"].startswith("moescope::") and e["cat"] == "user_annotation"]
    names = {e["name"] for e in ranges}
    assert {
        "moescope::L1.mb0.dispatch",
        "moescope::L2.mb1.experts.bwd",
        "moescope::mb0.head",
        "moescope::optimizer",
    } <= names
    grouped = [e for e in events if e["name"] == "aten::_grouped_mm"]
    for event in grouped:
        around = [r for r in ranges if r["ts"] <= event["ts"] and event["ts"] + event["dur"] <= r["ts"] + r["dur"]]
        assert len(around) == 1
        assert ".experts" in around[0]["name"]
    steps = [e["name"] for e in events if e["name"].startswith("ProfilerStep#") and e["cat"] == "user_annotation"]
    assert steps == ["ProfilerStep#10", "ProfilerStep#11"]


def splits(path: Path, rank: int, side: str) -> list[list[int]]:
    events = load(path / f"traces/rank{rank}.json.gz")["traceEvents"]
    kernels = [e for e in events if e.get("cat") == "kernel" and e["args"].get("Collective name") == "all_to_allv"]
    return [json.loads(e["args"][f"{side} split size"]) for e in sorted(kernels, key=lambda e: e["ts"])]


def test_what_one_rank_sends_the_other_receives(healthy_path):
    sent, received = (np.array([splits(healthy_path, r, side) for r in range(4)]) for side in ("In", "Out"))
    assert sent.shape == (4, 2 * 2 * 2 * 4, 4)
    assert (sent.transpose(1, 0, 2) == received.transpose(1, 2, 0)).all()


def test_long_lists_are_cut_after_thirty():
    assert cut_list(range(30)) == "[" + ", ".join(map(str, range(30))) + "]"
    assert cut_list(range(31)) == "[" + ", ".join(map(str, range(30))) + ", ...]"


def test_thirty_two_members_are_cut(tmp_path):
    config = tiny(ranks=32, ranks_per_host=8, ep_size=16, steps=1, microbatches=1, network=Network(resolution=0.05))
    (tmp_path / "rank17.json").write_text(trace_text(run_simulation(config), 17))
    (trace,) = open_directory(tmp_path).ranks
    args = trace.comm_args()
    assert args.filter(pl.col("group_name") == "0")["lists_cut"].all()
    assert not args.filter(pl.col("collective") == "all_to_allv")["lists_cut"].any()
    assert {g.name: len(g.ranks) for g in trace.groups.values()} == {"0": 32, "2": 16, "4": 2}


@pytest.mark.parametrize(("ns", "text"), [(0, "0.000"), (999, "0.999"), (1_234_567, "1234.567"), (10_050, "10.050")])
def test_nanoseconds_survive(ns, text):
    assert micro(ns) == text


def test_clocks_move_the_trace_and_not_the_truth(tmp_path, healthy_path):
    path = simulate(tiny("clock:offset_ms=5,drift_ppm=20"), tmp_path / "clocks")
    truth = json.loads((path / "truth.json").read_text())
    assert truth["collectives"] == json.loads((healthy_path / "truth.json").read_text())["collectives"]
    host = truth["clock"][1]
    assert host["offset_ns"] != 0
    assert truth["clock"][0]["offset_ns"] == truth["clock"][0]["drift_ppm"] == 0
    trace = open_directory(path).ranks[3]
    kernels = trace.events().filter(pl.col("name").cast(pl.String).str.starts_with("ncclDevKernel")).sort("start_ns")
    mine = [c for c in truth["collectives"] if 3 in c["ranks"]]
    true = np.array([c["start_ns"][c["ranks"].index(3)] for c in mine])
    local = true + host["offset_ns"] + np.rint((true - host["t0_ns"]) * host["drift_ppm"] * 1e-6).astype(np.int64)
    assert kernels["start_ns"].to_list() == sorted(local.tolist())


def test_truth_times_are_those_of_the_trace(healthy_path):
    truth = json.loads((healthy_path / "truth.json").read_text())
    assert truth["basis"] == "simulated"
    trace = open_directory(healthy_path).ranks[2]
    joined = trace.comm_args().join(trace.events(), on="index").filter(pl.col("category") == "kernel")
    seen = {(r["group_name"], r["seq"]): (r["start_ns"], r["start_ns"] + r["dur_ns"]) for r in joined.to_dicts()}
    for row in truth["collectives"]:
        member = row["ranks"].index(2)
        assert seen.pop((row["group"], row["sequence"])) == (row["start_ns"][member], row["end_ns"][member])
        assert (
            row["arrival_wait_ns"][member] + row["transfer_ns"][member]
            == row["end_ns"][member] - row["start_ns"][member]
        )
    assert seen == {}


def test_telemetry_agrees_with_the_traces(healthy_path):
    telemetry = open_telemetry(healthy_path)
    assert telemetry is not None
    assert telemetry.problems == []
    assert telemetry.run["basis"] == "simulated"
    assert telemetry.run["controls"] == []
    load_rows = telemetry.expert_load
    assert load_rows.height == 4 * 2 * 2 * 2
    assert load_rows["counts"].list.sum().unique().to_list() == [2 * 4096]
    dispatch = telemetry.collective.filter(
        (pl.col("phase") == "dispatch") & ~pl.col("backward") & (pl.col("rank") == 1)
    )
    sent = [[num_bytes // (2 * 2048) for num_bytes in row] for row in dispatch.sort("seq")["send_bytes"].to_list()]
    assert sent == splits_of_dispatches(healthy_path, 1)
    assert telemetry.clock.height == 2


def splits_of_dispatches(path: Path, rank: int) -> list[list[int]]:
    """Splits of forward dispatches: the first of each pair in the forward pass of two layers."""
    found = splits(path, rank, "In")
    per_microbatch = [found[i : i + 8] for i in range(0, len(found), 8)]
    return [microbatch[i] for microbatch in per_microbatch for i in (0, 2)]


def test_measured_offsets_hold_the_truth_within_half_a_round_trip(tmp_path):
    path = simulate(tiny("clock", ranks=8, ranks_per_host=2, ep_size=8, steps=1), tmp_path / "ping")
    truth = json.loads((path / "truth.json").read_text())
    telemetry = open_telemetry(path)
    assert telemetry is not None
    for row in telemetry.clock.to_dicts():
        host = truth["clock"][row["peer"] // 2]
        drift = (row["measured_at_ns"] - host["t0_ns"]) * host["drift_ppm"] * 1e-6
        assert abs(row["offset_ns"] - host["offset_ns"] - drift) <= row["round_trip_ns"] / 2


def test_without_hooks_only_torch_is_in_the_trace(tmp_path):
    path = simulate(tiny(hooks=False, steps=1), tmp_path / "plain")
    assert not (path / "telemetry").exists()
    assert b"moescope::" not in gzip.decompress((path / "traces/rank0.json.gz").read_bytes())


def test_missing_ranks_leave_no_trace(tmp_path):
    path = simulate(tiny("missing_ranks:ranks=1+3", steps=1), tmp_path / "missing")
    assert sorted(p.name for p in (path / "traces").iterdir()) == ["rank0.json.gz", "rank2.json.gz"]


def test_a_late_profiler_misses_the_first_collectives():
    whole, late = (
        json.loads(trace_text(run_simulation(tiny(*faults, steps=1)), 2))["traceEvents"]
        for faults in ((), ("lost_events:rank=2,count=2",))
    )
    sequences = [
        sorted(
            e["args"]["Seq"] for e in events if e.get("cat") == "kernel" and e["args"].get("Process Group Name") == "1"
        )
        for events in (whole, late)
    ]
    assert sequences[1] == sequences[0][2:]
    first = min(e["ts"] for e in late if e.get("cat") == "kernel")
    assert not [e for e in late if e.get("cat") == "cpu_op" and e["ts"] < first - 1000]


def test_lost_device_events_leave_their_launches():
    trace = json.loads(trace_text(run_simulation(tiny("lost_events:rank=2,count=5,which=random", steps=1)), 2))
    events = trace["traceEvents"]
    kernels = [e for e in events if e.get("cat") == "kernel" and "Seq" in e["args"]]
    ranges = [e for e in events if e["name"] == "record_param_comms"]
    assert len(ranges) - len(kernels) == 5
