"""Panels: sums stay sums, readings name the right rank, tables are safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import dataclasses
import io

import pytest
from analysis_fixture import bare, example
from hypothesis import given
from hypothesis import strategies as st

from moescope.views import palette
from moescope.views.catalog import PANELS
from moescope.views.links import Target, cost, evidence, moment, numbers
from moescope.views.model import LoadInterval, WaitEdge
from moescope.views.panels import Column, Table
from moescope.views.panels import comm as panels_comm
from moescope.views.panels import load as panels_load
from moescope.views.panels import run as panels_run
from moescope.views.panels import step as panels_step

KINDS = ["all_to_all", "reduction", "other"]
PARTS = [
    *(f"compute.{p}" for p in ("attention", "expert_gemm", "router", "permute", "other_gemm")),
    *(f"compute.{p}" for p in ("elementwise", "optimizer", "recompute", "other")),
    *(f"comm.{kind}.{p}" for kind in KINDS for p in ("wait_removable", "wait_overlapped", "transfer")),
    "memory.copy", "memory.allocator",
    *(f"idle.{p}" for p in ("host_launch", "sync", "dependency", "gap", "outside")),
]  # fmt: skip


@given(st.dictionaries(st.sampled_from([*PARTS, "compute.new", "comm.new.thing", "odd"]), st.integers(0, 10**12)))
def test_grouping_parts_keeps_their_sum(parts: dict[str, int]) -> None:
    assert sum(palette.grouped(parts).values()) == sum(parts.values())


def test_every_part_has_a_group_of_its_own_family() -> None:
    named = {part for group in palette.GROUPS for part in group.parts}
    assert named == set(PARTS)
    assert all(palette.group_of(part).hatched == (".wait_" in part) for part in PARTS)


def test_rank_parts_are_means_over_steps_and_sum_to_the_window() -> None:
    analysis = example(4, 3)
    for row in panels_step.rank_parts(analysis):
        mine = [r for r in analysis.ranks if r.rank == row.rank]
        assert row.window_ns == pytest.approx(sum(r.window_ns for r in mine) / 3)
        assert sum(row.parts_ns.values()) == pytest.approx(row.window_ns)
        assert sum(row.groups_ns.values()) == pytest.approx(row.window_ns)
    one = panels_step.rank_parts(analysis, 11)
    assert [row.window_ns for row in one] == [r.window_ns for r in analysis.ranks if r.step == 11]


@pytest.mark.parametrize("key", list(PANELS))
@pytest.mark.parametrize("analysis", [example(), bare(), example(1, 1, 1), example(2, 1, 1)])
def test_a_panel_has_either_tables_with_a_reading_or_a_reason(key, analysis) -> None:
    panel = PANELS[key](analysis)
    assert panel.key == key
    if panel.empty:
        assert panel.tables == ()
        assert panel.empty.missing
    else:
        assert panel.reading.endswith(".")
        assert panel.tables
        for table in panel.tables:
            assert all(len(row) == len(table.columns) for row in table.rows)


def test_readings_name_the_skewed_rank() -> None:
    analysis = example(hostile=False)
    assert "Rank 2 keeps 3 ranks waiting" in panels_comm.edges_panel(analysis).reading
    assert "rank 2 gets 1.99× the mean" in panels_load.rank_panel(analysis).reading
    assert "Rank 2 peaks highest, 46.7 GiB" in panels_run.memory_panel(analysis).reading
    assert "expert load of rank 2, layer 3" in panels_step.causes_panel(analysis).reading


def test_wait_matrix_of_many_ranks_keeps_the_most_waiting() -> None:
    edges = tuple(WaitEdge(waiter, 5, 1000 + waiter) for waiter in range(300) if waiter != 5)
    matrix = panels_comm.wait_matrix(dataclasses.replace(example(), wait_edges=edges), most=10)
    assert matrix.rows == tuple(range(290, 300))
    assert 5 in matrix.columns
    assert len(matrix.columns) == 10
    assert [row[matrix.columns.index(5)] for row in matrix.values] == [1290.0 + i for i in range(10)]


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3), st.floats(0, 9)), min_size=1, max_size=200),
    st.integers(1, 30),
)
def test_binned_intervals_keep_every_maximum(items: list[tuple[int, int, float]], most: int) -> None:
    load = example().load
    intervals = tuple(LoadInterval(step, mb, 1, None, value, 0, None) for step, mb, value in items)
    matrix = panels_load.interval_matrix(dataclasses.replace(load, intervals=intervals), most)
    assert len(matrix.columns) <= most
    assert max(v for v in matrix.values[0] if v is not None) == max(value for _, _, value in items)


def test_csv_carries_raw_values_units_and_no_formulas() -> None:
    columns = (Column("rank", "id"), Column("wait", "ms"), Column("name"))
    rows = ((0, 1_500_000, "=cmd()"), (1, None, "-2+3"), (2, 7, "plain, with comma"))
    read = list(csv.reader(io.StringIO(Table("t", columns, rows).to_csv())))
    assert read == [
        ["rank", "wait [ns]", "name"],
        ["0", "1500000", "'=cmd()"],
        ["1", "", "'-2+3"],
        ["2", "7", "plain, with comma"],
    ]


def test_evidence_leads_to_page_rank_and_layer() -> None:
    analysis = example(hostile=False)
    target = evidence(analysis.findings[0])
    assert (target.page, target.query) == ("load", "rank=2&layer=3")
    named = moment(analysis, analysis.findings[1])
    assert (named.start_ns, named.end_ns) == (
        analysis.findings[1].evidence["start_ns"],
        analysis.findings[1].evidence["end_ns"],
    )


def test_moment_is_the_collective_that_cost_most_waiting_for_that_rank() -> None:
    analysis = example(hostile=False)
    target = moment(analysis, analysis.findings[0])
    worst = next(c for c in analysis.collectives if c.layer == 3)
    assert (
        target.start_ns < min(m.start_ns for m in worst.by_rank) < max(m.end_ns for m in worst.by_rank) < target.end_ns
    )
    assert moment(bare(), analysis.findings[0]) is None
    assert Target("run").query == ""


def test_phase_colours_are_distinct() -> None:
    keys = palette.phase_groups(["dispatch", "combine", "experts", "before the trace", "x", "y", "attention"])
    assert len(set(keys)) == 7
    assert keys[0] == "a2a-transfer"
    assert keys[2] == "expert-gemm"


def test_finding_shows_cost_bound_and_numbers_with_units() -> None:
    finding = example(hostile=False).findings[1]
    assert cost(finding) == ("6.28 ms", "12.2 %")
    assert cost(example().findings[2]) is None
    evidence_ = {
        "page": "load",
        "is_upper_bound": True,
        "sync_ns": 1_500_000,
        "peak_bytes": 1 << 30,
        "ratio": 1.2345,
        "share_of_intervals": 0.5,
        "by_rank_ns": {"0": 2_000, "1": None},
        "problems": ["a", "b"],
        "anchors": 3,
    }
    bounded = dataclasses.replace(finding, evidence=evidence_)
    assert cost(bounded) == ("at most 6.28 ms", "12.2 %")
    assert numbers(bounded) == [
        ("sync", "1.50 ms"),
        ("peak", "1.00 GiB"),
        ("ratio", "1.23"),
        ("share of intervals", "50.0 %"),
        ("by rank", "0: 2.00 µs, 1: –"),
        ("problems", "a, b"),
        ("anchors", "3"),
    ]
