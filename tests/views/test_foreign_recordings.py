"""Recordings of other tools beside the traces reach the views."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from tiny_moe import balanced, play
from tiny_trace import write

from moescope.attribution.load import expert_groups
from moescope.views.build import analyze
from moescope.views.json import to_json
from moescope.views.panels.library import library_panel

RANKS, EXPERTS = 4, 8


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Two steps of the tiny MoE job of four ranks."""
    return write(play([balanced(0), balanced(1)]), tmp_path / "job")


def add_routing(job: Path) -> None:
    """Routing as Megatron-Core writes it: on every rank three tokens, two experts each; expert 7 takes the most."""
    chosen = [[0, 7], [2, 7], [4, 7]]
    (job / "routing").mkdir()
    for rank in range(RANKS):
        record = {"step": 0, "stage": "pre_dispatch", "block": "decoder", "layer": 1, "rank": rank, "num_tokens": 3}
        line = json.dumps({**record, "topk": 2, "top_indices": chosen})
        (job / "routing" / f"router_trace_rank{rank}.jsonl").write_text(line + "\n")


def test_routing_traces_fill_the_load_view(job: Path) -> None:
    add_routing(job)
    load = analyze(job, cache=False).load
    assert load is not None
    assert load.source == "telemetry"
    assert load.layers[0].expert_tokens == (4, 0, 4, 0, 4, 0, 0, 12)
    assert load.ranks == tuple(range(RANKS))
    assert load.layers[0].rank_tokens == (4, 8, 4, 8)  # two groups by the all-to-alls, so four experts a rank
    assert load.hottest_rank == 1


@pytest.mark.parametrize(
    ("rows", "groups"),
    [
        ([("all_to_all", [0, 1], None), ("all_to_all", [2, 3], None), ("all_reduce", [0, 3], None)], [[0, 1], [2, 3]]),
        ([("all_to_all", [0, 1], "dispatch"), ("all_to_all", [0, 1, 2], None)], [[0, 1]]),
        ([("all_to_all", [0, 1], None), ("all_to_all", [1, 2], None)], []),
        ([("all_to_all", [0], None)], []),
    ],
    ids=["two groups", "dispatches before others", "ranks in two groups", "alone"],
)
def test_groups_that_exchange_tokens_are_told_apart(rows: list[tuple[object, ...]], groups: list[list[int]]) -> None:
    schema = {"kind": pl.String, "members": pl.List(pl.Int64), "phase": pl.String}
    assert expert_groups(pl.DataFrame(rows, schema=schema, orient="row")) == groups


def test_inspector_files_fill_the_library_view_and_end_a_kept_result(job: Path) -> None:
    assert analyze(job).library == ()
    header = {"id": "0xe62dedaa97644a", "rank": 0, "n_ranks": 4, "nnodes": 1}
    metadata = {
        "inspector_output_format_version": "v4.0",
        "git_rev": "",
        "rec_mechanism": "nccl_profiler_interface",
        "dump_timestamp_us": 1752867229276385,
        "hostname": "node-0",
        "pid": 438776,
    }
    perf = {
        "coll": "ReduceScatter",
        "coll_sn": 1231,
        "coll_msg_size_bytes": 2147483648,
        "coll_exec_time_us": 41057,
        "coll_timing_source": "kernel_gpu",
        "coll_algobw_gbs": 418.439467,
        "coll_busbw_gbs": 366.134533,
    }
    folder = job / "nccl-inspector-unknown-jobid"
    folder.mkdir()
    (folder / "node-0-pid438776.log").write_text(
        json.dumps({"header": header, "metadata": metadata, "coll_perf": perf}, separators=(",", ":")) + "\n"
    )
    analysis = analyze(job)
    assert len(analysis.library) == 1
    found = analysis.library[0]
    assert (found.kind, found.bytes_up_to, found.num) == ("reduce_scatter", 2147483648, 1)
    assert (found.shortest_ns, found.busbw_gb_per_s) == (41057000, 366.134533)
    assert (found.group_size, found.num_members) == (4, 1)
    table = library_panel(analysis).tables[0]
    assert table.rows[0][1] == "reduce scatter"
    section = to_json(analysis, with_=["library"])["library"]
    assert isinstance(section, list)
    assert len(section) == 1


def test_the_panel_says_how_to_record_what_is_missing(job: Path) -> None:
    empty = library_panel(analyze(job, cache=False)).empty
    assert empty is not None
    assert "NCCL_INSPECTOR_ENABLE=1" in empty.how_to_record
