"""Every way a command can end has its exit code, its stream and its words."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

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


PRINTERS = ["print('x' * 1000000)", "click.echo('x' * 1000000)", "console().print('x' * 1000000)"]


@pytest.mark.parametrize("printer", PRINTERS)
def test_reader_that_went_away_is_no_error(printer):
    script = "import click, sys; from moescope.cli.boundary import guarded; from moescope.cli.text import console\n"
    script += f"sys.exit(guarded(lambda: {printer}, as_json=False, debug=False))"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-c", script], stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


SKEWED = str(Path(__file__).parents[2] / "sample_traces" / "skewed")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["analyze", "--help"],
        ["simulate", "--list-faults"],
        ["doctor", SKEWED],
        ["doctor", SKEWED, "--json"],
    ],
)
def test_commands_whose_reader_went_away_end_well(arguments):
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "moescope", *arguments]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


BEGIN = "import os, signal, sys, time\nfrom moescope.cli.boundary import guarded\n"
PRINT = BEGIN + "sys.exit(guarded(lambda: print(chr(233) * 100), as_json={json}, debug=False))"
INTERRUPTIBLE = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
INTERRUPTIBLE += "signal.signal(signal.SIGTERM, signal.SIG_DFL)\n"


def run(script, **options):
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": 60}
    return subprocess.run([sys.executable, "-c", script], check=False, **(streams | options))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("as_json", [True, False])
def test_output_that_is_not_taken_is_told_on_stderr(as_json):
    with open("/dev/full", "wb") as full:
        done = run(PRINT.format(json=as_json), stdout=full)
        silent = run(PRINT.format(json=as_json), stdout=full, stderr=full)
    assert done.returncode == silent.returncode == ExitCode.UNREADABLE
    assert done.stderr.startswith("moescope: a file, or the output: No space left on device\n")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_streams_that_the_caller_closed_are_no_error(closed, tmp_path):
    redirections = " ".join(f"{number}{'<' if number == 0 else '>'}&-" for number in closed)
    (tmp_path / "script.py").write_text(PRINT.format(json=False))
    shell = ["sh", "-c", f"'{sys.executable}' '{tmp_path / 'script.py'}' {redirections}"]
    done = subprocess.run(shell, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("settings", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}])
def test_no_encoding_of_the_output_is_an_error(settings):
    done = run(PRINT.format(json=False), env=os.environ | {"PYTHONUTF8": "0"} | settings)
    assert (done.returncode, done.stdout, done.stderr) == (0, r"\xe9" * 100 + "\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_command_in_order_and_a_late_one_changes_nothing(number):
    script = f"""
def command():
    try:
        os.kill(os.getpid(), {int(number)})
        time.sleep(20)
    finally:
        print("put in order", flush=True)

import moescope.__main__, moescope.cli
moescope.cli.main = lambda: guarded(command, as_json=False, debug=False)
code = moescope.__main__.main()
os.kill(os.getpid(), {int(number)})
sys.exit(code)
"""
    done = run(BEGIN + INTERRUPTIBLE + script)
    assert (done.returncode, done.stdout) == (ExitCode.INTERRUPTED, "put in order\n")
    assert done.stderr == "moescope: Interrupted: nothing half-written is left behind.\n"


def test_an_interrupted_command_leaves_signals_as_they_were(capsys):
    """For a caller whose process goes on: what it starts inherits what is ignored."""

    def command():
        raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    assert guarded(command, as_json=False, debug=False) == ExitCode.INTERRUPTED
    assert [signal.getsignal(number) for number in numbers] == before
    assert "Interrupted" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["moescope.cli", "click"])
def test_an_interrupt_while_modules_are_imported_is_no_crash(module):
    script = f"""
import importlib.abc, os, sys

class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from moescope.__main__ import main
sys.exit(main())
"""
    done = run(INTERRUPTIBLE + script)
    assert (done.returncode, done.stderr) == (ExitCode.INTERRUPTED, "moescope: Interrupted.\n")


def test_lines_of_a_message_cannot_pass_for_messages_of_ours(capsys):
    guarded(raising(InputUnreadableError("a\nmoescope: done\u2028b\u202ec")), as_json=False, debug=False)
    assert capsys.readouterr().err == "moescope: a\n  moescope: done\n  b\\u202ec\n"
