"""``moescope export``: an aligned trace whose ids are unique, and tables a spreadsheet can open safely."""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter
from dataclasses import replace

import polars as pl
import pytest
from analysis_fixture import HOSTILE, example
from trace_fixture import event, write_trace

import moescope
from moescope.cli import main
from moescope.views.frames import TABLES, frame
from moescope.views.model import Clock
from moescope.views.perfetto import common_ns, parts_by_rank
from moescope.views.tables import neutral, write_table


@pytest.fixture
def folder(tmp_path):
    traces = tmp_path / "traces"
    traces.mkdir()
    write_trace(traces, 0)
    write_trace(traces, 1)
    return traces


def exported(folder, *options: str) -> list[dict[str, object]]:
    out = folder.parent / "out"
    assert main(["export", str(folder), "-o", str(out), "--tables", "none", *options]) == 0
    with gzip.open(out / "trace.json.gz", "rt") as file:
        trace: dict[str, list[dict[str, object]]] = json.load(file)
    return trace["traceEvents"]


def test_every_event_is_there_at_its_time(folder):
    events = exported(folder)
    recorded = [e for e in events if e["ph"] == "X" and e["cat"] != "moescope"]
    assert len(recorded) == 20
    gemms = sorted((e["ts"], e["dur"]) for e in recorded if e["name"] == "gemm")
    assert gemms == [(5.0, 20.0), (5.0, 20.0), (105.0, 20.0), (105.0, 20.0)]


def test_processes_and_links_of_ranks_do_not_mix(folder):
    events = exported(folder)
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    pids_of_rank = {rank: {pid for pid, name in names.items() if f"rank {rank}:" in name} for rank in (0, 1)}
    assert len(pids_of_rank[0]) == len(pids_of_rank[1]) == 3
    assert pids_of_rank[0] & pids_of_rank[1] == set()
    starts, ends = ({e["id"]: e for e in events if e["ph"] == phase} for phase in "sf")
    assert len(starts) == 4
    assert starts.keys() == ends.keys()
    for key, start in starts.items():
        assert any({start["pid"], ends[key]["pid"]} <= pids for pids in pids_of_rank.values())


def test_own_tracks_show_steps_and_every_collective(folder):
    analysis = moescope.open(folder).analysis
    own = Counter(e["name"] for e in exported(folder) if e.get("cat") == "moescope")
    assert own["step 0"] == own["step 1"] == 2
    assert own["all_to_all: transfer"] == sum(len(c.by_rank) for c in analysis.collectives) > 0
    assert sum(own[finding.code] for finding in analysis.findings) == len(analysis.findings)


def test_hosts_are_moved_to_the_common_clock():
    clock = Clock("b", (1,), 1_500, 10.0, 0, 0, "fit", 9, origin_ns=1_000_000)
    assert common_ns(1_000_000, clock) == 998_500
    assert common_ns(2_000_000, clock) == 2_000_000 - 1_500 - 10
    assert common_ns(5, None) == 5


def test_last_to_arrive_is_named():
    parts = parts_by_rank(example())
    assert {part.last_rank for part in parts[0]} == {2}
    assert sum(map(len, parts.values())) == sum(len(c.by_rank) for c in example().collectives)


def test_hostile_names_stay_text_in_the_trace(folder):
    name = f'{HOSTILE}"\\\x1b\u2028'
    file = folder / "rank0.json"
    trace = json.loads(file.read_text())
    trace["traceEvents"].append(event(name, "cpu_op", 1000.0, 1.0))
    file.write_text(json.dumps(trace))
    assert sum(e["name"] == name for e in exported(folder)) == 1


def test_tables_are_those_of_the_run(folder, capsys):
    out = folder.parent / "tables"
    assert main(["export", str(folder), "-o", str(out), "--no-trace", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    run = moescope.open(folder)
    assert (answer["schema"], answer["ok"]) == ("moescope.export/1", True)
    assert {file["file"] for file in answer["files"]} == {str(out / f"{name}.parquet") for name in run.tables}
    for name in run.tables:
        assert pl.read_parquet(out / f"{name}.parquet").equals(run.table(name))


def test_nothing_is_left_of_a_failed_export(folder, monkeypatch):
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("moescope.views.tables.write_table", fail)
    assert main(["export", str(folder), "-o", str(folder.parent / "out")]) == 130
    assert [path.name for path in folder.parent.iterdir()] == ["traces"]


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "  =1", "=cmd|'/C calc'!A0"])
def test_csv_text_that_opens_like_a_formula_is_neutralised(text, tmp_path):
    table = pl.DataFrame({"name": [text, "plain"], "value": [-1, 2], "list": [[1, 2], []]})
    assert neutral(table)["name"].to_list() == [f"'{text}", "plain"]
    write_table(table, tmp_path / "t.csv")
    with open(tmp_path / "t.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [["name", "value", "list"], [f"'{text}", "-1", "1 2"], ["plain", "2", ""]]


def test_csv_of_a_hostile_run_holds_no_formula(tmp_path):
    finding = replace(example().findings[0], claim="=HYPERLINK(1)")
    analysis = replace(example(), findings=(finding,), name="=1")
    for name in TABLES:
        write_table(frame(analysis, name), tmp_path / f"{name}.csv")
        with open(tmp_path / f"{name}.csv", newline="") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        assert not [cell for cell in cells if cell.lstrip()[:1] in ("=", "@", "+")]
