"""The error boundary: whatever a command raises becomes one message and one exit code here.

Text goes to stderr. With ``--json`` the error is an object on stdout, so that a script reads one stream:
``{"ok": false, "error": {"code", "message", "hint"}}``.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable

import click

from moescope.cli.text import printable
from moescope.errors import ExitCode, MoescopeError

Command = Callable[[], object]


def guarded(command: Command, *, as_json: bool, debug: bool) -> int:
    """Run ``command`` and return its exit code; report whatever it raises.

    ``debug`` lets the traceback of an unexpected error through to stderr.
    """
    try:
        result = command()
        sys.stdout.flush()
    except (KeyboardInterrupt, click.Abort):
        report("interrupted", "Interrupted: nothing half-written is left behind.", "", as_json=as_json)
        return ExitCode.INTERRUPTED
    except click.ClickException as error:
        report("usage", error.format_message(), usage_hint(error), as_json=as_json)
        return ExitCode.USAGE
    except MoescopeError as error:
        report(error.code, error.message, error.hint, as_json=as_json)
        return error.exit_code
    except OSError as error:
        return os_failure(error, as_json=as_json, debug=debug)
    except Exception as error:
        return internal(error, as_json=as_json, debug=debug)
    return result if isinstance(result, int) else ExitCode.DONE


def report(code: str, message: str, hint: str, *, as_json: bool) -> None:
    """Print one error: as an object on stdout, or as text on stderr."""
    try:
        if as_json:
            error = {"code": code, "message": message, "hint": hint}
            click.echo(json.dumps({"ok": False, "error": error}, indent=1))
        else:
            click.echo(f"moescope: {printable(message)}", err=True)
            for line in hint.splitlines():
                click.echo(f"  {printable(line)}", err=True)
    except BrokenPipeError:
        discard_stdout()


def usage_hint(error: click.ClickException) -> str:
    """Return where to read how the command is called."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"See: {context.command_path if context else 'moescope'} --help"


def os_failure(error: OSError, *, as_json: bool, debug: bool) -> int:
    """Tell a reader that went away, a full disk and a refused file from a bug."""
    if error.errno == errno.EPIPE:
        discard_stdout()
        return ExitCode.DONE
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM):
        hint = "Free some space or name another place for what is written (see --help)."
        report("file-refused", f"{error.filename or 'a file'}: {error.strerror}", hint, as_json=as_json)
        return ExitCode.UNREADABLE
    return internal(error, as_json=as_json, debug=debug)


def discard_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush does not complain about the closed pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def internal(error: Exception, *, as_json: bool, debug: bool) -> int:
    """Report a bug in moescope: one line, and where to find the traceback."""
    if debug:
        sys.excepthook(type(error), error, error.__traceback__)
    hint = "Set MOESCOPE_DEBUG=1 to see the traceback, and please report it with the command that led here."
    report("internal", f"internal error: {type(error).__name__}: {error}", hint, as_json=as_json)
    return ExitCode.INTERNAL
