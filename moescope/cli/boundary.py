"""The error boundary: whatever a command raises becomes one message and one exit code here.

Text goes to stderr. With ``--json`` the error is an object on stdout, so that a script reads one stream:
``{"ok": false, "error": {"code", "message", "hint"}}``.
"""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import TextIO

import click

from moescope.cli.text import printable
from moescope.errors import ExitCode, MoescopeError
from moescope.signals import signals_kept

Command = Callable[[], object]


def guarded(command: Command, *, as_json: bool, debug: bool) -> int:
    """Run ``command`` and return its exit code; report whatever it raises.

    ``debug`` lets the traceback of an unexpected error through to stderr. An interrupt has no effect any more once the
    outcome is known.
    """
    make_streams_safe()
    try:
        with terminated_like_interrupted():
            result = command()
            sys.stdout.flush()
    except (KeyboardInterrupt, click.Abort):
        with interrupts_ignored():
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


def make_streams_safe() -> None:
    """Open what the caller closed onto nothing, and let no encoding of the terminal's fail."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            mode = "r" if number == 0 else "w"
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - as long as the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in {"strict", "surrogateescape"}:
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does, so that it puts things in order; helper processes just end."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    own = os.getpid()

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() != own:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        interrupt = signal.getsignal(signal.SIGINT)
        if callable(interrupt):  # called as it is: the system's handler may be another library's for a while
            interrupt(int(signal.SIGINT), frame)
        else:  # Ctrl-C is ignored, as in a shell's background
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def interrupts_ignored() -> AbstractContextManager[None]:
    """Without signals that end a command: all that is left to do is to say what happened.

    Handled by nothing, not ignored: of one that came just before, Python would tell that it cannot be handled.
    """
    return signals_kept(signal.SIGINT, signal.SIGTERM, handler=lambda *_: None)


def report(code: str, message: str, hint: str, *, as_json: bool) -> None:
    """Print one error: as an object on stdout, or as text on stderr, and there too where stdout takes nothing."""
    if as_json:
        try:
            error = {"code": code, "message": message, "hint": hint}
            click.echo(json.dumps({"ok": False, "error": error}, indent=1))
        except BrokenPipeError:
            discard(sys.stdout)
            return
        except OSError:
            discard(sys.stdout)
        else:
            return
    lines = [line for line in message.splitlines() if line.strip()] or [""]
    try:
        click.echo(f"moescope: {printable(lines[0])}", err=True)
        for line in (*lines[1:], *hint.splitlines()):
            click.echo(f"  {printable(line)}", err=True)
    except OSError:
        discard(sys.stderr)


def usage_hint(error: click.ClickException) -> str:
    """Return where to read how the command is called."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"See: {context.command_path if context else 'moescope'} --help"


def os_failure(error: OSError, *, as_json: bool, debug: bool) -> int:
    """Tell a reader that went away, a full disk and a refused file from a bug."""
    if error.errno == errno.EPIPE:
        discard(sys.stdout)
        return ExitCode.DONE
    if not can_flush(sys.stdout):
        discard(sys.stdout)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM):
        hint = "Free some space or name another place for what is written (see --help)."
        report("file-refused", f"{error.filename or 'a file, or the output'}: {error.strerror}", hint, as_json=as_json)
        return ExitCode.UNREADABLE
    return internal(error, as_json=as_json, debug=debug)


def can_flush(stream: TextIO) -> bool:
    """Whether what was printed so far arrives."""
    try:
        stream.flush()
    except OSError:
        return False
    return True


def discard(stream: TextIO) -> None:
    """Point ``stream`` at nothing, so that the interpreter's last flush does not complain about what was not taken."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def internal(error: Exception, *, as_json: bool, debug: bool) -> int:
    """Report a bug in moescope: one line, and where to find the traceback."""
    if debug:
        sys.excepthook(type(error), error, error.__traceback__)
    hint = "Set MOESCOPE_DEBUG=1 to see the traceback, and please report it with the command that led here."
    report("internal", f"internal error: {type(error).__name__}: {error}", hint, as_json=as_json)
    return ExitCode.INTERNAL
