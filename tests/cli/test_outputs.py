"""No command that writes costs anybody anything: it replaces what it made itself, when told to, and nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from trace_fixture import write_trace

from moescope.cli import main
from moescope.errors import MoescopeError
from moescope.outputs import BASELINE, EXPORT, MANIFEST, REPORT, SIMULATED, TRAINED, check_place, write_manifest

SIMULATE = ["--ranks", "2", "--steps", "1", "--layers", "2", "--microbatches", "1", "--tokens", "256", "--experts", "8"]
FOLDERS = {"export": "-o", "simulate": "--out", "train": "--out"}
FILES = {"report": "-o", "baseline": "--out"}


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    folder = tmp_path / "run" / "traces"
    folder.mkdir(parents=True)
    for rank in range(2):
        write_trace(folder, rank)
    return folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home, and a working directory within it, both with something in them."""
    home = tmp_path / "home"
    (home / "work").mkdir(parents=True)
    (home / "letter.txt").write_text("dear")
    (home / "work" / "code.py").write_text("pass")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home / "work")
    return home


def command(name: str, traces: Path, target: Path) -> list[str]:
    """``name`` told to replace ``target``."""
    place = [{**FOLDERS, **FILES}[name], str(target), "--force"]
    more = {"simulate": SIMULATE, "export": [str(traces)], "report": [str(traces)]}
    return [name, *more.get(name, []), *place]


def snapshot(root: Path) -> dict[str, bytes | str | None]:
    """Every path below ``root`` but what reading caches, with its content."""
    found: dict[str, bytes | str | None] = {}
    for path in sorted(root.rglob("*")):
        if ".moescope" not in path.relative_to(root).parts:
            plain = path.is_file() and not path.is_symlink()
            found[str(path)] = path.read_bytes() if plain else os.readlink(path) if path.is_symlink() else None
    return found


def refused(arguments: list[str], root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Hold that the command ends with a usage error, says so, and changes nothing."""
    before = snapshot(root)
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert "--force doesn't replace it" in said.err
    assert snapshot(root) == before


def mine(place: Path) -> None:
    place.mkdir()
    (place / "notes.txt").write_text("mine")
    (place / "traces").mkdir()
    (place / "traces" / "rank0.json.gz").write_text("recorded elsewhere")


def hooked(place: Path) -> None:
    """A run that the hooks recorded in somebody's own training."""
    mine(place)
    (place / "run.json").write_text(json.dumps({"command": ["python", "pretrain.py"], "basis": "measured"}))


def hostile(place: Path) -> None:
    mine(place)
    for text in ("[]", '{"command": 3}', "{", '{"command": {"a": 1}}'):
        (place / "run.json").write_text(text)


def linked(place: Path) -> None:
    mine(place.with_name("elsewhere"))
    place.symlink_to(place.with_name("elsewhere"))


def bad_manifest(place: Path) -> None:
    mine(place)
    (place / MANIFEST).write_text('{"schema": "moescope.export/1", "files": ["traces", 1, null]}')


@pytest.mark.parametrize("make", [mine, hooked, hostile, linked, bad_manifest])
@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_of_somebody_is_never_replaced(
    name: str, make: Callable[[Path], None], traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "place")
    refused(command(name, traces, tmp_path / "place"), tmp_path, capsys)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("made", ["text", "link", "fifo"])
def test_a_file_of_somebody_is_never_replaced(
    name: str, made: str, traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "place"
    if made == "text":
        place.write_text("{}")
    elif made == "link":
        place.symlink_to(tmp_path / "absent")
    else:
        os.mkfifo(place)
    refused(command(name, traces, place), tmp_path, capsys)


@pytest.mark.parametrize("name", [*FOLDERS, *FILES])
def test_what_is_read_and_lived_in_is_never_replaced(
    name: str,
    traces: Path,
    home: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = {"report": [traces / "rank0.json"], "baseline": [traces / "rank0.json"]}
    folders = [traces, traces.parent, home, home / "work", tmp_path, Path()]
    if name == "train":  # shares folders, so it refuses those that hold a part of a run
        folders = [traces.parent]
    for target in files.get(name, folders):
        refused(command(name, traces, target), tmp_path, capsys)


def run_json(folder: Path, command: list[str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"command": command, "basis": "simulated"}))
    return folder


def test_marks_do_not_make_what_is_read_or_lived_in_replaceable(home: Path, tmp_path: Path) -> None:
    for kind, name in ((TRAINED, "train"), (SIMULATED, "simulate")):
        for place in (home, home / "work", Path()):
            run_json(place, ["moescope", name])
            with pytest.raises(MoescopeError, match="working directory"):
                check_place(place, kind, force=True)
        run = run_json(tmp_path / "marked", ["moescope", name])
        check_place(run, kind, force=True)
        with pytest.raises(MoescopeError, match="what this command reads"):
            check_place(run, kind, force=True, reads=[run / "telemetry" / "routing"])
        with pytest.raises(MoescopeError, match="exists already") as told:
            check_place(run, kind, force=False)
        assert told.value.code == "exists"


def test_each_run_is_replaced_by_its_own_command_alone(tmp_path: Path) -> None:
    for kind, name in ((TRAINED, "simulate"), (SIMULATED, "train")):
        with pytest.raises(MoescopeError, match="is not a run"):
            check_place(run_json(tmp_path / name, ["moescope", name]), kind, force=True)


def test_a_root_is_never_replaced() -> None:
    for kind in (EXPORT, SIMULATED):
        with pytest.raises(MoescopeError):
            check_place(Path("/"), kind, force=True)
    for kind in (REPORT, BASELINE):
        with pytest.raises(MoescopeError):
            check_place(Path("/dev/null"), kind, force=True)


def test_the_empty_working_directory_is_not_swapped_for_an_export(home: Path) -> None:
    (home / "work" / "code.py").unlink()
    with pytest.raises(MoescopeError):
        check_place(Path(), EXPORT, force=True)
    check_place(Path(), SIMULATED, force=False)


def test_an_export_is_replaced_until_something_is_added_to_it(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["export", str(traces), "-o", str(out), "--no-trace"]
    assert main(arguments) == 0
    assert main(arguments) == 2
    assert "replace it with --force" in capsys.readouterr().err
    assert main([*arguments, "--tables", "csv", "--force"]) == 0
    assert {path.suffix for path in out.iterdir() if path.name != MANIFEST} == {".csv"}
    (out / "notes.txt").write_text("mine")
    refused([*arguments, "--force"], tmp_path, capsys)


def test_what_comes_to_the_place_while_an_export_is_written_stays(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"

    def late(folder: Path, names: list[str]) -> None:
        write_manifest(folder, names)
        out.mkdir()
        (out / "notes.txt").write_text("mine")

    monkeypatch.setattr("moescope.cli.export.write_manifest", late)
    assert main(["export", str(traces), "-o", str(out), "--force", "--no-trace"]) == 2
    assert [path.name for path in out.iterdir()] == ["notes.txt"]


def test_a_new_simulated_run_leaves_what_lies_beside_the_parts(tmp_path: Path) -> None:
    out = tmp_path / "run"
    elsewhere = tmp_path / "elsewhere"
    mine(elsewhere)
    assert main(["simulate", *SIMULATE, "--out", str(out)]) == 0
    (out / "notes.txt").write_text("mine")
    (out / "telemetry").rename(tmp_path / "kept")
    (out / "telemetry").symlink_to(elsewhere)
    before = snapshot(elsewhere)
    assert main(["simulate", *SIMULATE, "--out", str(out), "--force"]) == 0
    assert (out / "notes.txt").read_text() == "mine"
    assert snapshot(elsewhere) == before


def test_a_report_and_a_baseline_are_known_again(traces: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    for _ in range(2):
        assert main(["report", str(traces), "-o", str(page), "--force"]) == 0
    page.write_text("<!doctype html><title>mine</title>")
    assert main(["report", str(traces), "-o", str(page), "--force"]) == 2
    made = tmp_path / "baseline.json"
    made.write_text(json.dumps({"schema": "moescope.baseline/1"}, indent=1))
    check_place(made, BASELINE, force=True)
    with pytest.raises(MoescopeError, match="what this command reads"):
        check_place(made, BASELINE, force=True, reads=[made])
