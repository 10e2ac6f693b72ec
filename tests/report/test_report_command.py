"""``moescope report`` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trace_fixture import write_trace

from moescope.cli import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "two"
    made.mkdir()
    for rank in range(2):
        write_trace(made, rank, host="secret-node")
    return made


def test_writes_the_file_and_names_the_next_command(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.html"
    assert main(["report", str(folder), "-o", str(out)]) == 0
    printed = capsys.readouterr().out
    assert f"Wrote {out}" in printed
    assert f"moescope serve {folder}" in printed
    page = out.read_text()
    assert "secret-node" not in page
    assert str(tmp_path) not in page
    assert main(["report", str(folder), "-o", str(out)]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["report", str(folder), "-o", str(out), "--force", "--no-redact"]) == 0
    assert "secret-node" in out.read_text()


def test_same_input_gives_same_bytes(folder: Path, tmp_path: Path) -> None:
    for name in ("a.html", "b.html"):
        assert main(["report", str(folder), "-o", str(tmp_path / name), "--no-cache"]) == 0
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_json_says_what_was_written(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.html"
    assert main(["report", str(folder), "-o", str(out), "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["ok"]
    assert body["file"] == str(out)
    assert body["size_bytes"] == out.stat().st_size


def test_nothing_is_left_when_the_input_is_unreadable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    out = tmp_path / "out.html"
    assert main(["report", str(tmp_path / "empty"), "-o", str(out)]) == 3
    assert capsys.readouterr().err
    assert not out.exists()
