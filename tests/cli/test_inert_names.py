"""Names come from anybody: in every text of a run they stay text, on a terminal, in a page, a table and a trace."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from analysis_fixture import example
from hostile_names import MARK, PAYLOAD, poisoned_run
from rich.console import Console
from trace_fixture import event, write_trace

from moescope.cli import main
from moescope.cli.comparison import print_comparison
from moescope.cli.verdict import print_analysis
from moescope.report import render
from moescope.views.catalog import PANELS
from moescope.views.compare import compare
from moescope.views.frames import TABLES, frame
from moescope.views.model import Analysis
from moescope.views.tables import write_table

FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return poisoned_run()


class Tags(HTMLParser):
    """Collects what a browser would run or load."""

    def __init__(self) -> None:
        super().__init__()
        self.active: list[str] = []
        self.scripts: list[str] = []
        self._in_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_script = tag == "script" and ("type", "application/json") not in attrs
        if self._in_script:
            self.scripts.append("")
        for name, value in attrs:
            if name.startswith("on") or (name in {"href", "src"} and (value or "").startswith("javascript:")):
                self.active.append(f"{tag} {name}={value}")

    def handle_endtag(self, tag: str) -> None:
        self._in_script = self._in_script and tag != "script"

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts[-1] += data


def inert(page: str) -> None:
    """Hold that nothing in ``page`` runs the payload."""
    tags = Tags()
    tags.feed(page)
    assert tags.active == []
    assert [script for script in tags.scripts if MARK in script] == []
    assert f"<script>{MARK}" not in page
    assert f"<img src=x onerror={MARK}" not in page


def test_a_report_runs_no_name(analysis: Analysis) -> None:
    page = render(analysis).text
    assert page.count(MARK) > 20
    inert(page)


def test_a_terminal_gets_no_line_and_no_control_of_a_name(analysis: Analysis) -> None:
    for show, shown in ((print_analysis, analysis), (print_comparison, compare(analysis, example(hostile=False)))):
        out = io.StringIO()
        show(shown, Console(file=out, width=100_000))
        text = out.getvalue()
        assert MARK in text
        assert FORBIDDEN.search(text) is None
        assert "1. balanced  good\\u202e" not in [line.strip() for line in text.splitlines()]
        assert sum(line == "Verdict" for line in text.splitlines()) <= 1


@pytest.mark.parametrize("name", TABLES)
def test_a_csv_table_holds_no_control_of_a_name(name: str, analysis: Analysis, tmp_path: Path) -> None:
    write_table(frame(analysis, name), tmp_path / "table.csv")
    with open(tmp_path / "table.csv", newline="", encoding="utf-8") as file:
        for row in csv.reader(file):
            for cell in row:
                assert FORBIDDEN.search(cell.replace("\r", "")) is None


def test_an_exported_trace_keeps_names_as_text(tmp_path: Path) -> None:
    folder = tmp_path / "<img src=x onerror=x>&'\u202e"
    folder.mkdir()
    write_trace(folder, 0, host=PAYLOAD)
    file = folder / "rank0.json"
    trace = json.loads(file.read_text())
    trace["traceEvents"].append(event(PAYLOAD, "kernel", 1000.0, 1.0))
    file.write_text(json.dumps(trace))
    out, page = tmp_path / "out", tmp_path / "page.html"
    assert main(["export", str(folder), "-o", str(out), "--tables", "none"]) == 0
    with gzip.open(out / "trace.json.gz", "rt", encoding="utf-8") as exported:
        text = exported.read()
    assert re.search("[\x00-\x09\x0b-\x1f]", text) is None
    assert PAYLOAD in {event["name"] for event in json.loads(text)["traceEvents"]}
    assert main(["report", str(folder), "-o", str(page), "--no-redact"]) == 0
    inert(page.read_text(encoding="utf-8"))


def test_a_served_csv_holds_no_control_of_a_name(analysis: Analysis) -> None:
    for make in PANELS.values():
        for table in make(analysis).tables:
            assert FORBIDDEN.search(table.to_csv().replace("\r", "").replace("\n", "")) is None
