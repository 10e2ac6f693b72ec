"""Recordings of Megatron-Core's router and of NCCL's inspector, written as they write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moescope.telemetry import Telemetry, open_telemetry
from moescope.telemetry.foreign import find_foreign
from moescope.views.library import LibraryCollective, library_collectives


def read(root: Path) -> Telemetry:
    telemetry = open_telemetry(root)
    assert telemetry is not None
    return telemetry


def routed(step: int, layer: int, chosen: list[list[int]], rank: int = 0, **more: Any) -> str:
    """One line as ``RouterTracer`` writes it."""
    record = {
        "step": step,
        "stage": "pre_dispatch",
        "block": "decoder",
        "layer": layer,
        "rank": rank,
        "num_tokens": len(chosen),
        "topk": len(chosen[0]),
    }
    return json.dumps({**record, **more, "top_indices": chosen}) + "\n"


def test_routing_traces_are_counted_by_microbatch(tmp_path: Path) -> None:
    folder = tmp_path / "routing"
    folder.mkdir()
    (folder / "router_trace_rank0.jsonl").write_text(
        routed(0, 1, [[0, 3], [3, 1]]) + routed(0, 2, [[2, 1], [2, 0]]) + routed(0, 1, [[0, 1], [0, 2]])
    )
    (folder / "router_trace_rank1.jsonl").write_text(routed(0, 1, [[1, 2]], rank=1))
    telemetry = read(tmp_path)
    assert telemetry.problems == []
    assert telemetry.expert_load.select("rank", "step", "microbatch", "layer", "counts").rows() == [
        (0, 0, 0, 1, [1, 1, 0, 2]),
        (1, 0, 0, 1, [0, 1, 1, 0]),
        (0, 0, 0, 2, [1, 1, 2, 0]),
        (0, 0, 1, 1, [2, 1, 1, 0]),
    ]
    assert telemetry.expert_load["entropy"].null_count() == 4


def test_layers_of_multi_token_prediction_follow_the_decoder(tmp_path: Path) -> None:
    lines = (
        routed(0, 3, [[0]]) + routed(0, 0, [[1]], block="mtp", mtp_idx=0) + routed(0, 0, [[1]], block="mtp", mtp_idx=1)
    )
    (tmp_path / "anything.txt").write_text(lines)
    assert read(tmp_path).expert_load["layer"].to_list() == [3, 4, 5]


def test_recomputed_passes_count_once_and_that_is_said(tmp_path: Path) -> None:
    first, second = [[0, 1], [0, 2]], [[1, 2], [2, 0]]
    lines = [routed(0, 0, chosen) for chosen in (first, second, first, second)]
    (tmp_path / "router_trace_rank0.jsonl").write_text("".join(lines))
    telemetry = read(tmp_path)
    assert telemetry.expert_load["counts"].to_list() == [[2, 1, 1], [1, 1, 2]]
    assert any("twice" in problem for problem in telemetry.problems)


def test_a_cut_line_costs_itself_alone(tmp_path: Path) -> None:
    whole = routed(0, 0, [[0], [1]])
    (tmp_path / "router_trace_rank0.jsonl").write_text(whole + whole[: len(whole) // 2])
    telemetry = read(tmp_path)
    assert telemetry.expert_load.height == 1
    assert telemetry.problems == [
        "router_trace_rank0.jsonl: 1 lines are cut or no routing records; their counts are missing"
    ]


HEADER = {"id": "0x7f8c496ae9f661", "rank": 2, "n_ranks": 8, "nnodes": 1}
METADATA = {
    "inspector_output_format_version": "v4.0",
    "git_rev": "",
    "rec_mechanism": "nccl_profiler_interface",
    "dump_timestamp_us": 1748030377748202,
    "hostname": "node-1",
    "pid": 1639453,
}


def collective(seq: int, time_us: int, size: int = 1 << 20, kind: str = "AllReduce", **more: Any) -> dict[str, Any]:
    gb_per_s = size / time_us / 1e3
    return {
        "coll": kind,
        "coll_sn": seq,
        "coll_msg_size_bytes": size,
        "coll_exec_time_us": time_us,
        "coll_timing_source": "kernel_gpu",
        "coll_algobw_gbs": gb_per_s,
        "coll_busbw_gbs": gb_per_s * 1.75,
        **more,
    }


def line(**fields: Any) -> str:
    """As the plugin prints: no spaces, one object a line."""
    return json.dumps(fields, separators=(",", ":")) + "\n"


def test_every_line_of_version_4_0_says_whose_it_is(tmp_path: Path) -> None:
    verbose = {
        "event_trace_sn": {"coll_start_sn": 1, "coll_stop_sn": 2, "kernel_events": []},
        "event_trace_ts": {
            "coll_start_ts": 1752867229235059,
            "coll_stop_ts": 1752867229235064,
            "kernel_events": [
                {"channel_id": 0, "kernel_start_ts": 1752867229235181, "kernel_stop_ts": 1752867229275811},
                {"channel_id": 1, "kernel_start_ts": 1752867229235180, "kernel_stop_ts": 1752867229275811},
            ],
        },
    }
    folder = tmp_path / "nccl-inspector-unknown-jobid"
    folder.mkdir()
    (folder / "node-1-pid1639453.log").write_text(
        line(header=HEADER, metadata=METADATA, coll_perf=collective(1407, 61974))
        + line(header=HEADER, metadata=METADATA, coll_perf=collective(1408, 41057, kind="ReduceScatter", **verbose))
    )
    telemetry = read(tmp_path)
    assert telemetry.problems == []
    first, second = telemetry.library.rows(named=True)
    assert (first["kind"], first["seq"], first["bytes"], first["duration_ns"]) == (
        "all_reduce",
        1407,
        1 << 20,
        61974000,
    )
    assert (first["communicator"], first["name"], first["member"], first["group_size"]) == (HEADER["id"], None, 2, 8)
    assert (first["host"], first["pid"], first["start_ns"]) == ("node-1", 1639453, None)
    assert first["busbw_gb_per_s"] == pytest.approx(1.75 * first["algbw_gb_per_s"])
    assert (second["kind"], second["start_ns"]) == ("reduce_scatter", 1752867229235180000)


def dump(num_coll: int, num_p2p: int, dropped: int = 0, name: str = "EP", rank: int = 0) -> str:
    """The marker of version 4.3, which speaks for the lines after it."""
    return line(
        header={"id": "0x1", "comm_name": name, "rank": rank, "n_ranks": 2, "nnodes": 1},
        metadata={**METADATA, "inspector_output_format_version": "v4.3"},
        dump_stats={"coll_records": num_coll, "coll_dropped_total": dropped, "p2p_records": num_p2p},
    )


def test_lines_of_version_4_3_belong_to_the_marker_before_them(tmp_path: Path) -> None:
    p2p = {
        "p2p": "Send",
        "p2p_sn": 7,
        "p2p_peer": 1,
        "p2p_msg_size_bytes": 4096,
        "p2p_exec_time_us": 12,
        "p2p_timing_source": "kernel_gpu",
        "p2p_algobw_gbs": "nan",
        "p2p_busbw_gbs": 0.5,
    }
    (tmp_path / "host-pid1.log").write_text(
        dump(1, 1)
        + line(coll_perf=collective(5, 100, coll_algo="RING", coll_proto="LL"))
        + line(p2p_perf=p2p)
        + dump(1, 0, dropped=3, rank=1)
        + line(coll_perf=collective(5, 80))
        + line(proxy_trace={"record_type": "proxy_op"})
    )
    telemetry = read(tmp_path)
    rows = telemetry.library.select("name", "kind", "member", "peer", "seq", "algorithm", "algbw_gb_per_s").rows()
    assert [row[:5] for row in rows] == [
        ("EP", "all_reduce", 0, None, 5),
        ("EP", "all_reduce", 1, None, 5),
        ("EP", "send", 0, 1, 7),
    ]
    assert [row[5] for row in rows] == ["RING", None, None]
    assert rows[2][6] is None
    assert telemetry.problems == [
        "host-pid1.log: the plugin overwrote 3 records before writing them: raise its ring size"
    ]


def test_a_cut_inspector_file_says_so(tmp_path: Path) -> None:
    whole = line(header=HEADER, metadata=METADATA, coll_perf=collective(1, 10))
    (tmp_path / "a-pid1.log").write_text(whole + whole[:200])
    telemetry = read(tmp_path)
    assert telemetry.library.height == 1
    assert "1 lines are cut" in telemetry.problems[0]


def test_operations_are_summed_up_by_kind_and_size(tmp_path: Path) -> None:
    """Two ranks, three all-reduces of a megabyte: the later rank takes 100, 200, 300 us, the earlier 50 us more."""
    lines = [
        line(header={**HEADER, "rank": rank, "n_ranks": 2}, metadata=METADATA, coll_perf=collective(seq, us + wait))
        for rank, wait in ((0, 0), (1, 50))
        for seq, us in enumerate((100, 200, 300))
    ]
    (tmp_path / "a-pid1.log").write_text("".join(lines))
    rate = (1 << 20) / 200e3
    assert library_collectives(read(tmp_path).library) == (
        LibraryCollective(
            group=str(HEADER["id"]),
            kind="all_reduce",
            group_size=2,
            num_members=2,
            num_hosts=1,
            bytes_up_to=1 << 20,
            num=3,
            shortest_ns=200_000,
            longest_ns=250_000,
            algbw_gb_per_s=pytest.approx(rate),
            busbw_gb_per_s=pytest.approx(1.75 * rate),
            timing="kernel_gpu",
        ),
    )


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 1 loss 2.0\n")
    (tmp_path / "trace.json").write_text('{"traceEvents": [], "step": 1}')
    (tmp_path / ".hidden.jsonl").write_text(routed(0, 0, [[0]]))
    assert len(find_foreign(tmp_path)) == 0
    assert open_telemetry(tmp_path) is None
