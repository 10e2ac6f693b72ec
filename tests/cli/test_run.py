"""``moescope.open``: lazy, typed, and the same numbers as the command line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from trace_fixture import write_trace

import moescope
from moescope.cli import main
from moescope.errors import DataMissingError, InputUnreadableError, UnknownNameError


@pytest.fixture
def folder(tmp_path):
    write_trace(tmp_path, 0)
    write_trace(tmp_path, 1)
    return tmp_path


def test_import_is_light():
    script = "import sys, moescope; moescope.open; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert {"numpy", "polars", "torch"} & set(done.stdout.split()) == set()


def test_nothing_is_read_before_it_is_asked_for(tmp_path):
    run = moescope.open(tmp_path / "absent")
    assert repr(run) == f"moescope.open({str(tmp_path / 'absent')!r})"
    with pytest.raises(InputUnreadableError):
        run.findings  # noqa: B018


def test_numbers_are_those_of_the_command_line(folder, capsys):
    run = moescope.open(folder)
    assert main(["analyze", str(folder), "--json", "--with", "collectives"]) == 0
    assert json.loads(capsys.readouterr().out) == run.json(["collectives"])
    assert run.findings == run.analysis.findings


def test_tables_and_events(folder):
    run = moescope.open(folder, cache=False)
    assert run.table("ranks")["rank"].unique().sort().to_list() == [0, 1]
    assert len(run.events(1)) == 10
    assert run.inventory().ranks == (0, 1)
    with pytest.raises(UnknownNameError, match="steps"):
        run.table("nonsense")
    with pytest.raises(DataMissingError):
        run.events(7)
