"""Writing the file: whole or not at all, never over another without being told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from analysis_fixture import bare

from moescope.errors import MoescopeError
from moescope.report import write_report, write_whole


def test_writes_whole_file_and_leaves_nothing_beside(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "report.html"
    done = write_report(bare(), target)
    assert target.stat().st_size == done.size_bytes
    assert [p.name for p in target.parent.iterdir()] == ["report.html"]


def test_refuses_to_overwrite_without_force(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    write_report(bare(), target)
    before = target.read_bytes()
    with pytest.raises(MoescopeError, match="exists already") as caught:
        write_report(replace(bare(), name="another"), target)
    assert "--force" in caught.value.hint
    assert target.read_bytes() == before
    write_report(replace(bare(), name="another"), target, force=True)
    assert target.read_bytes() != before


def test_refuses_a_folder(tmp_path: Path) -> None:
    with pytest.raises(MoescopeError, match="is not a file of moescope report"):
        write_report(bare(), tmp_path, force=True)


def test_unwritable_place_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MoescopeError, match="Can't write"):
        write_report(bare(), tmp_path / "file" / "report.html")


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "report.html"
    target.write_text("old")

    def fail(*_: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_whole(target, b"new")
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
