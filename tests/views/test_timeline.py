"""The timeline of a folder: tiles decode to what the traces hold, on the common clock."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from analysis_fixture import example
from trace_fixture import event, write_trace

from moescope.views.build import analyze, open_timeline
from moescope.views.model import Clock
from moescope.views.palette import grouped
from moescope.views.timeline import Timeline
from moescope.views.timeline.colours import SLICE_GROUPS
from moescope.views.timeline.exchanges import Exchanges
from moescope.views.timeline.lanes import on_common_clock
from moescope.views.timeline.strips import CLASSES

STEP_NS = 100_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("traces")
    for rank in range(2):
        write_trace(made, rank)
    return made


@pytest.fixture(scope="module")
def timeline(folder: Path) -> Timeline:
    return open_timeline(folder, analyze(folder))


def decode(tile: bytes) -> tuple[dict, list[np.ndarray]]:
    """The header, and per row its long starts, durations, names, and short counts."""
    assert tile[:4] == b"MST1"
    length = int.from_bytes(tile[4:8], "little")
    head = json.loads(tile[8 : 8 + length])
    offset, rows = 8 + length, []

    def take(dtype: str, count: int) -> np.ndarray:
        nonlocal offset
        array = np.frombuffer(tile, dtype, count, offset)
        offset += -(-array.nbytes // 8) * 8
        return array

    strips = [take("<u1", head["classes"] * head["count"]) for _ in head["strips"]]
    for row in head["rows"]:
        longs = [take(kind, row["longs"]) for kind in ("<f8", "<f8", "<u4", "<u4", "<u1")]
        shorts = [take(kind, row["shorts"]) for kind in ("<f8", "<u4", "<u4", "<u4", "<u4", "<u1")]
        rows.append((longs, shorts))
    assert offset == len(tile)
    return head, [strips, rows]


def test_meta_names_ranks_steps_and_an_exact_origin(timeline: Timeline) -> None:
    meta = timeline.meta()
    assert int(meta["base_ns"]) == 1_000_000
    assert [rank["rank"] for rank in meta["ranks"]] == [0, 1]
    assert meta["ranks"][0]["host"] == "node0"
    assert [(s["step"], s["start"]) for s in meta["steps"]] == [(0, 0), (1, STEP_NS)]
    assert meta["groups"] == SLICE_GROUPS


def test_lanes_are_streams_then_threads(timeline: Timeline) -> None:
    lanes = timeline.lanes_meta(0)["lanes"]
    assert [lane["title"] for lane in lanes] == ["stream 7", "stream 20", "thread 1"]
    assert [lane["rows"] for lane in lanes] == [1, 1, 3]


def test_tile_holds_the_slices_of_the_trace(timeline: Timeline) -> None:
    lanes = timeline.lanes(0)
    rows = [(0, lane.key, row) for lane in lanes for row in range(len(lane.rows))]
    head, (strips, decoded) = decode(timeline.tile(0, 200, 10, [0, 1], rows))
    assert len(strips) == 2
    gemm, exchange, step, mm, launch = [longs for longs, _ in decoded]
    assert gemm[0].tolist() == [5_000, 105_000]
    assert gemm[1].tolist() == [20_000, 20_000]
    assert [head["names"][str(n)] for n in gemm[2]] == ["gemm", "gemm"]
    assert exchange[0].tolist() == [30_000, 130_000]
    assert [head["names"][str(n)] for n in step[2]] == ["ProfilerStep#0", "ProfilerStep#1"]
    assert [head["names"][str(n)] for n in mm[2]] == ["aten::mm", "aten::mm"]
    assert [head["names"][str(n)] for n in launch[2]] == ["cudaLaunchKernel", "cudaLaunchKernel"]
    coarse, (_, counted) = decode(timeline.tile(0, 1, 20, [], rows))
    assert [sum(shorts[2]) for _, shorts in counted] == [2, 2, 2, 2, 2]
    assert coarse["rows"][0]["longs"] == 0


def test_range_breaks_down_exactly(timeline: Timeline) -> None:
    body = timeline.range(0, STEP_NS)
    for rank in body["ranks"]:
        spent = dict(zip(body["classes"], rank["busy_ns"], strict=True))
        assert spent["other-compute"] == 20_000
        assert spent["a2a-transfer"] == 20_000
        assert sum(spent.values()) == STEP_NS


def test_strips_add_up_to_the_parts_of_every_step(timeline: Timeline, folder: Path) -> None:
    analysis = analyze(folder)
    for row in analysis.ranks:
        low = row.start_ns - timeline.base_ns
        assert {key: ns for key, ns in grouped(row.parts_ns).items() if ns} == {
            key: ns
            for key, ns in zip(CLASSES, timeline.strip(row.rank).busy(low, low + row.window_ns), strict=True)
            if ns
        }


def test_a_timeline_opens_without_what_was_kept(timeline: Timeline, folder: Path) -> None:
    analysis = analyze(folder)
    for kept in (folder / ".moescope").rglob("*.strips"):
        kept.unlink()
    again = open_timeline(folder, analysis)
    assert again.tile(-5, 300, 9, [0, 1], []) == timeline.tile(-5, 300, 9, [0, 1], [])


def test_without_the_cache_nothing_kept_is_looked_at(
    folder: Path, timeline: Timeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    analysis = analyze(folder)
    monkeypatch.setattr("moescope.views.build.load_strips", lambda _: pytest.fail("what was kept was read"))
    again = open_timeline(folder, analysis, cache=False)
    assert again.tile(-5, 300, 9, [0, 1], []) == timeline.tile(-5, 300, 9, [0, 1], [])


def test_slice_tells_everything_recorded(timeline: Timeline) -> None:
    lane = timeline.lanes(0)[1]
    slice_ = timeline.slice((0, lane.key, 0), 0)
    assert slice_["name"] == "ncclDevKernel_SendRecv"
    assert slice_["start_ns"] == "1030000"
    assert slice_["dur"] == 20_000
    assert slice_["details"]["collective"] == "all_to_allv"
    assert slice_["details"]["stream"] == 20
    following = timeline.neighbour((0, lane.key, 0), 0, 1)
    assert (following["position"], following["start"]) == (1, 130_000)
    assert timeline.neighbour((0, lane.key, 0), 1, 1)["position"] == 1


def test_collective_at_a_moment_has_all_ranks(timeline: Timeline) -> None:
    found = timeline.at(0, 35_000)["collective"]
    assert [member["rank"] for member in found["members"]] == [0, 1]
    assert (found["members"][0]["start"], found["members"][0]["end"]) == (30_000, 50_000)
    assert timeline.at(0, 60_000)["collective"] is None


def test_search_ignores_case_and_orders_by_time(timeline: Timeline) -> None:
    body = timeline.search("GEMM")
    assert [(hit["rank"], hit["start"]) for hit in body["hits"]] == [(0, 5_000), (1, 5_000), (0, 105_000), (1, 105_000)]
    assert timeline.search("no such name")["hits"] == []
    assert timeline.search("m", most=1)["cut"]
    assert timeline.search(".*")["num_hits"] == 0


def test_links_are_the_longest_waits_in_a_range() -> None:
    analysis = example(num_steps=2)
    exchanges = Exchanges(analysis.collectives, 0)
    begin = min(member.start_ns for one in analysis.collectives for member in one.by_rank)
    end = max(member.end_ns for one in analysis.collectives for member in one.by_rank)
    longest = [max(m["arrival_wait_ns"] for m in one["members"]) for one in exchanges.between(begin, end, 0, 5)]
    assert longest == sorted(longest, reverse=True)
    waits = [max(m.arrival_wait_ns for m in one.by_rank) for one in analysis.collectives]
    assert longest == sorted((wait for wait in waits if wait > 0), reverse=True)[:5]
    assert exchanges.between(begin, end, max(waits) + 1, 5) == []
    assert exchanges.between(end + 1, end + 2, 0, 5) == []
    first = exchanges.between(begin, end, 0, 1)[0]
    assert first["last_rank"] == max(first["members"], key=lambda member: member["start"])["rank"]


def test_microbatches_are_the_forward_passes_of_the_first_rank(tmp_path: Path) -> None:
    write_trace(tmp_path, 0, world_size=1)
    file = tmp_path / "rank0.json"
    trace = json.loads(file.read_text())
    for step in range(2):
        for at, name in enumerate(
            ("mb0.attention", "mb0.experts", "mb1.attention", "mb1.experts.bwd", "mb0.experts.bwd")
        ):
            ts = 1000.0 + 100 * step + 10 * at
            trace["traceEvents"].append(event(f"moescope::L0.{name}", "user_annotation", ts, 8))
    file.write_text(json.dumps(trace))
    found = open_timeline(tmp_path, analyze(tmp_path)).microbatches()["microbatches"]
    assert [(one["microbatch"], one["start"], one["end"]) for one in found] == [
        (0, 0, 18_000),
        (1, 20_000, 28_000),
        (0, 100_000, 118_000),
        (1, 120_000, 128_000),
    ]


ASKED = [
    lambda t: t.strip(9),
    lambda t: t.lanes(9),
    lambda t: t.row((0, "x", 0)),
    lambda t: t.at(9, 0),
    lambda t: t.row((0, t.lanes(0)[0].key, 9)),
    lambda t: t.slice((0, t.lanes(0)[0].key, 0), 99),
]


@pytest.mark.parametrize("ask", ASKED)
def test_what_is_not_there_is_a_key_error(timeline: Timeline, ask) -> None:
    with pytest.raises(KeyError):
        ask(timeline)


def test_clock_shifts_in_whole_nanoseconds() -> None:
    clock = Clock("b", (1,), 1_500, 10.0, 0, 0, "m", 3, origin_ns=1_000_000)
    local = np.array([1_000_000, 2_000_000], dtype=np.int64)
    assert on_common_clock(local, clock, 500).tolist() == [998_000, 1_997_990]
    assert on_common_clock(local, None, 500).tolist() == [999_500, 1_999_500]
