"""Every way a command can end has its exit code, its stream and its words."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys

import click
import pytest

from moescope.cli.boundary import guarded
from moescope.errors import DataMissingError, ExitCode, InputUnreadableError, MoescopeError

USAGE = click.UsageError("no such option: --nonsense")
CASES = [
    (InputUnreadableError("runs/x: no trace", hint="look elsewhere"), ExitCode.UNREADABLE, "input-unreadable"),
    (DataMissingError("no counts", hint="attach the hooks"), ExitCode.DATA_MISSING, "data-missing"),
    (MoescopeError("cannot", code="odd", exit_code=ExitCode.USAGE), ExitCode.USAGE, "odd"),
    (USAGE, ExitCode.USAGE, "usage"),
    (ValueError("boom"), ExitCode.INTERNAL, "internal"),
    (FileNotFoundError(errno.ENOENT, "No such file"), ExitCode.INTERNAL, "internal"),
    (PermissionError(errno.EACCES, "Permission denied", "out.html"), ExitCode.UNREADABLE, "file-refused"),
    (OSError(errno.ENOSPC, "No space left on device"), ExitCode.UNREADABLE, "file-refused"),
    (KeyboardInterrupt(), ExitCode.INTERRUPTED, "interrupted"),
    (click.Abort(), ExitCode.INTERRUPTED, "interrupted"),
]


def raising(error: BaseException) -> object:
    def command() -> object:
        raise error

    return command


@pytest.mark.parametrize(("error", "exit_code", "code"), CASES, ids=lambda value: getattr(value, "name", None))
def test_error_as_json_is_one_object_on_stdout(error, exit_code, code, capsys):
    assert guarded(raising(error), as_json=True, debug=False) == exit_code
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert answer["ok"] is False
    assert answer["error"]["code"] == code
    assert set(answer["error"]) == {"code", "message", "hint"}
    assert err == ""


@pytest.mark.parametrize(("error", "exit_code", "code"), CASES, ids=lambda value: getattr(value, "name", None))
def test_error_as_text_goes_to_stderr_without_traceback(error, exit_code, code, capsys):  # noqa: ARG001
    assert guarded(raising(error), as_json=False, debug=False) == exit_code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("moescope: ")
    assert "Traceback" not in err


def test_hint_follows_the_message(capsys):
    guarded(raising(InputUnreadableError("runs/x: empty", hint="first line\nsecond line")), as_json=False, debug=False)
    assert capsys.readouterr().err == "moescope: runs/x: empty\n  first line\n  second line\n"


def test_debug_shows_the_traceback_of_an_unexpected_error(capsys):
    guarded(raising(ValueError("boom")), as_json=False, debug=True)
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "ValueError: boom" in err


def test_control_characters_of_hostile_names_do_not_reach_the_terminal(capsys):
    guarded(raising(InputUnreadableError("\x1b[2Jrank\x07 \udcff")), as_json=False, debug=False)
    assert capsys.readouterr().err == "moescope: \\x1b[2Jrank\\x07 \\udcff\n"


@pytest.mark.parametrize(("returned", "exit_code"), [(None, 0), (ExitCode.CONDITION_MET, 5), (4, 4)])
def test_exit_code_is_what_the_command_returned(returned, exit_code):
    assert guarded(lambda: returned, as_json=False, debug=False) == exit_code


def test_reader_that_went_away_is_no_error():
    script = "import sys; from moescope.cli.boundary import guarded\n"
    script += "sys.exit(guarded(lambda: print('x' * 1000000), as_json=False, debug=False))"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-c", script], stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")
