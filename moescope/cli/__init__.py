"""The ``moescope`` command: a lazy click group and the one place where errors end.

Each command lives in ``moescope/cli/NAME.py`` and exposes a :class:`click.Command` named ``command`` whose
callback returns ``None`` or an exit code. Command modules import what is heavy (numpy, polars, torch, dash) inside
their functions, so that ``moescope --help`` stays instant.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Sequence

import click

from moescope import __version__
from moescope.cli.boundary import guarded

COMMANDS = ("train", "simulate", "analyze", "report", "serve", "doctor", "compare", "export", "baseline")
"""The order of the help page: the order in which they are used."""


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all commands, in the order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return one command, ``None`` where there is none of this name."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"moescope.cli.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        command.name = cmd_name
        return command


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 internal error, 2 usage, 3 input unreadable, 4 data missing for the question, "
    "5 a --fail-on condition met, 130 interrupted.",
)
@click.version_option(__version__, prog_name="moescope", message="%(prog)s %(version)s")
def cli() -> None:
    """Say where the step of a mixture-of-experts training run goes: which rank and which layer caused it, and what
    each fix would be worth."""


def _run(args: list[str]) -> object:
    """Run the command. A reader that went away comes out as the error it is: click would end the process with 1."""
    stdout, stderr = sys.stdout, sys.stderr
    try:
        return cli.main(args, prog_name="moescope", standalone_mode=False)
    except SystemExit:
        if sys.stdout is stdout:
            raise
        sys.stdout, sys.stderr = stdout, stderr
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line on ``argv`` (default ``sys.argv[1:]``) and return its exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in (args[: args.index("--")] if "--" in args else args)
    debug = os.environ.get("MOESCOPE_DEBUG", "") not in ("", "0")
    return guarded(lambda: _run(args), as_json=as_json, debug=debug)
