"""The tables of an analysis hold its numbers, and their columns also when they hold none."""

from __future__ import annotations

import json

import polars as pl
import pytest
from analysis_fixture import bare, example

from moescope.views.frames import TABLES, frame


@pytest.mark.parametrize("table", TABLES)
def test_columns_do_not_depend_on_the_rows(table):
    full, empty = frame(example(), table), frame(bare(), table)
    assert full.schema == empty.schema
    assert not full.is_empty()


def test_parts_sum_to_the_window():
    analysis = example()
    sums = frame(analysis, "parts").group_by("rank", "step").agg(pl.col("ns").sum())
    windows = frame(analysis, "ranks").select("rank", "step", ns="window_ns")
    assert sums.sort("rank", "step").equals(windows.sort("rank", "step"))


def test_unions_stand_beside_the_rank():
    analysis = example()
    row = frame(analysis, "ranks").row(0, named=True)
    assert row["union_idle_ns"] == analysis.ranks[0].unions_ns.idle


def test_collectives_have_a_row_per_rank():
    analysis = example()
    table = frame(analysis, "collectives")
    assert len(table) == sum(len(collective.by_rank) for collective in analysis.collectives)
    first = analysis.collectives[0]
    waits = table.filter(sequence=first.sequence, step=first.step)["arrival_wait_ns"].to_list()
    assert waits == [member.arrival_wait_ns for member in first.by_rank]


def test_evidence_is_json():
    analysis = example()
    evidence = frame(analysis, "findings")["evidence"].to_list()
    assert [json.loads(text) for text in evidence] == [dict(finding.evidence) for finding in analysis.findings]


def test_load_by_expert_and_rank():
    analysis = example()
    assert analysis.load is not None
    layer = analysis.load.layers[1]
    experts = frame(analysis, "load_experts").filter(layer=layer.layer).sort("expert")
    ranks = frame(analysis, "load_ranks").filter(layer=layer.layer).sort("rank")
    assert tuple(experts["tokens"]) == layer.expert_tokens
    assert tuple(ranks["tokens"]) == layer.rank_tokens
    assert experts["tokens"].sum() == ranks["tokens"].sum()
