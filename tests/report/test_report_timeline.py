"""The timeline inside a report: all of it where it fits, else what was cut is said; no name that should be hidden."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path

import pytest
from trace_fixture import event, write_trace

from moescope.report import timeline as embedding
from moescope.report import write_report
from moescope.report.timeline import embed_timeline
from moescope.views.build import analyze, open_timeline
from moescope.views.timeline import Timeline

HOST = "gpu-a17.secret.example"
SECRET_NAME = "/home/alice/train.py(12): <script>alert(1)</script>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("traces")
    for rank in range(2):
        write_trace(made, rank, host=HOST)
        file = made / f"rank{rank}.json"
        trace = json.loads(file.read_text())
        trace["traceEvents"].append(event(SECRET_NAME, "python_function", 1001, 3))
        file.write_text(json.dumps(trace))
    return made


@pytest.fixture(scope="module")
def timeline(folder: Path) -> Timeline:
    return open_timeline(folder, analyze(folder))


def tile(text: str) -> dict:
    """The header of an embedded tile."""
    content = gzip.decompress(base64.b64decode(text))
    return json.loads(content[8 : 8 + int.from_bytes(content[4:8], "little")])


def test_all_slices_of_all_ranks_fit(timeline: Timeline) -> None:
    embedded = embed_timeline(timeline, 1_000_000, [1])
    assert embedded is not None
    assert embedded.cuts == ()
    assert [row["rank"] for row in embedded.parts["rows"]] == [1, 0]
    rows = tile(embedded.parts["rows"][0]["data"])["rows"]
    assert sum(row["longs"] for row in rows) == 11
    assert sum(row["shorts"] for row in rows) == 0
    shifts = [tile(text)["shift"] for text in embedded.parts["strips"]]
    assert shifts == sorted(shifts)
    assert shifts[0] == 0


@pytest.mark.parametrize("budget", [2_500, 4_000, 6_000])
def test_what_does_not_fit_is_named(timeline: Timeline, monkeypatch: pytest.MonkeyPatch, budget: int) -> None:
    monkeypatch.setattr(embedding, "LEAST_BYTES", 0)
    whole = embed_timeline(timeline, 1_000_000)
    embedded = embed_timeline(timeline, budget)
    assert embedded is not None
    assert len(json.dumps(embedded.parts, separators=(",", ":"))) <= budget
    assert bool(embedded.cuts) == (len(embedded.parts["rows"]) < 2 or embedded.parts["strips"] != whole.parts["strips"])


def test_too_small_a_budget_has_no_timeline(timeline: Timeline) -> None:
    assert embed_timeline(timeline, 1000) is None


def write(folder: Path, target: Path, *, hide: bool = True, budget: int = 5_000_000) -> str:
    analysis = analyze(folder)
    write_report(
        analysis, target, force=True, hide_names=hide, budget_bytes=budget,
        open_timeline=lambda shown, rename: open_timeline(folder, shown, rename=rename),
    )  # fmt: skip
    return target.read_text()


def embedded_text(page: str) -> str:
    """Everything that the page holds, packed tiles unpacked."""
    data = re.search(r'<script type="application/json" id="timeline-data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    parts = json.loads(data[1])
    packed = [*parts["strips"], *(row["data"] for row in parts["rows"])]
    heads = [json.dumps(tile(text), ensure_ascii=False) for text in packed]
    return page.replace(data[1], "") + json.dumps({**parts, "strips": [], "rows": []}) + "".join(heads)


def test_hosts_and_folders_are_hidden_in_the_tiles_too(folder: Path, tmp_path: Path) -> None:
    hidden = embedded_text(write(folder, tmp_path / "r.html"))
    assert "secret" not in hidden
    assert "alice" not in hidden
    assert "host-1" in hidden
    assert "train.py(12)" in hidden
    shown = embedded_text(write(folder, tmp_path / "r.html", hide=False))
    assert HOST in shown
    assert "/home/alice/train.py(12)" in shown


def test_same_input_same_bytes_within_the_budget(folder: Path, tmp_path: Path) -> None:
    first = write(folder, tmp_path / "a.html")
    assert first == write(folder, tmp_path / "b.html")
    assert "<script>alert" not in first
    small = write(folder, tmp_path / "c.html", budget=260_000)
    assert len(small.encode()) <= 260_000
