"""Bad input: a clear message, the right exit code, no traceback, and what can be read is read."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys

import pytest
from trace_fixture import write_trace

from moescope.cli import main


def analyzed(folder, capsys) -> tuple[int, dict[str, object]]:
    code = main(["analyze", str(folder), "--json"])
    return code, json.loads(capsys.readouterr().out)


def incomplete(answer) -> str:
    return " ".join(finding["claim"] for finding in answer["findings"] if finding["code"] == "incomplete-input")


@pytest.fixture
def folder(tmp_path):
    write_trace(tmp_path, 0)
    write_trace(tmp_path, 1)
    return tmp_path


@pytest.mark.parametrize("make", ["absent", "empty", "text", "json", "binary", "empty-file"])
def test_nothing_readable_ends_with_3(tmp_path, capsys, make):
    folder = tmp_path / "in"
    content = {"text": b"hello", "json": b'{"a": [1, 2]}', "binary": bytes(range(256)) * 9, "empty-file": b""}
    if make != "absent":
        folder.mkdir()
    if make in content:
        (folder / "rank0.json").write_bytes(content[make])
    code, answer = analyzed(folder, capsys)
    assert code == 3
    assert answer["ok"] is False
    assert str(folder) in answer["error"]["message"]
    assert answer["error"]["hint"]


def test_half_a_file_is_read_and_its_loss_is_said(folder, capsys):
    whole = (folder / "rank1.json").read_bytes()
    (folder / "rank1.json").write_bytes(whole[: len(whole) * 2 // 3])
    code, answer = analyzed(folder, capsys)
    assert code == 0
    assert {row["rank"] for row in answer["ranks"]} == {0, 1}
    assert "rank1.json" in incomplete(answer)


def test_half_a_gzip_is_read_and_its_loss_is_said(folder, capsys):
    whole = gzip.compress((folder / "rank1.json").read_bytes())
    (folder / "rank1.json").unlink()
    (folder / "rank1.json.gz").write_bytes(whole[: len(whole) * 2 // 3])
    code, answer = analyzed(folder, capsys)
    assert code == 0
    assert "rank1.json.gz" in incomplete(answer)


def test_a_file_that_is_no_trace_does_not_hide_the_others(folder, capsys):
    (folder / "rank2.json").write_bytes(b"\x00\x01")
    code, answer = analyzed(folder, capsys)
    assert code == 0
    assert {row["rank"] for row in answer["ranks"]} == {0, 1}
    assert "rank2.json" in incomplete(answer)


def test_two_files_that_claim_one_rank_are_said(folder, capsys):
    shutil.copy(folder / "rank0.json", folder / "rank9.json")
    code, answer = analyzed(folder, capsys)
    assert code == 0
    assert "claims rank 0" in incomplete(answer)


def test_missing_ranks_are_named(tmp_path, capsys):
    for rank in (0, 3):
        write_trace(tmp_path, rank, world_size=4)
    code, answer = analyzed(tmp_path, capsys)
    assert code == 0
    assert "2 of 4 ranks are missing (1, 2)" in incomplete(answer)
    assert answer["missing"]


def test_hosts_that_name_no_rank_end_with_4(folder, capsys):
    assert main(["analyze", str(folder), "--hosts", "7-8", "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "hosts-unknown"


@pytest.mark.parametrize("command", ["analyze", "doctor", "report", "export"])
def test_every_reading_command_ends_without_a_traceback(tmp_path, command):
    (tmp_path / "rank0.json").write_text("{")
    run = [sys.executable, "-m", "moescope", command, str(tmp_path)]
    done = subprocess.run(run, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.startswith("moescope: ")
    assert "Traceback" not in done.stderr
