"""The group: light to start, strict about what it's given, the same answer in text and JSON."""

from __future__ import annotations

import json
import subprocess
import sys

import click
import pytest

from moescope import __version__
from moescope.cli import COMMANDS, cli, main

HEAVY = {"numpy", "polars", "dash", "torch", "plotly", "rich"}


def imported_by(*args: str) -> set[str]:
    """Return the top-level modules that a run of the command imports."""
    script = "import sys\nfrom moescope.cli import main\ncode = main(sys.argv[1:])\n"
    script += "print(*sorted({m.split('.')[0] for m in sys.modules}), file=sys.stderr)\nsys.exit(code)"
    done = subprocess.run([sys.executable, "-c", script, *args], capture_output=True, text=True, check=True)
    assert done.stdout
    return set(done.stderr.split())


@pytest.mark.parametrize("args", [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)], ids=" ".join)
def test_help_imports_nothing_heavy(args):
    assert imported_by(*args) & HEAVY == set()


def test_every_command_says_what_it_does_in_one_line(capsys):
    assert main(["--help"]) == 0
    page = capsys.readouterr().out
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert f"  {name} " in page
        assert command.help


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"moescope {__version__}\n"


WRONG = [["nonsense"], ["analyze"], ["analyze", "x", "--nonsense"], ["analyze", "x", "--hosts", "a-b"]]


@pytest.mark.parametrize("args", WRONG, ids=" ".join)
def test_wrong_use_ends_with_2_in_text_and_in_json(args, capsys):
    assert main(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "--help" in err
    assert main([*args, "--json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert answer["error"]["code"] == "usage"
    assert "--help" in answer["error"]["hint"]


def test_json_after_a_double_dash_is_a_folder_not_a_flag(capsys):
    assert main(["analyze", "--nonsense", "--", "--json"]) == 2
    assert capsys.readouterr().out == ""


def test_module_runs_as_the_command():
    done = subprocess.run([sys.executable, "-m", "moescope", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"moescope {__version__}\n"
