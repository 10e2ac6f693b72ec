"""Errors a user can meet, and the exit codes they lead to.

An error is raised once, where the cause is known, and handled once, at the command boundary
(:mod:`moescope.cli`), which prints it as text or as ``{"ok": false, "error": ...}``.
"""

from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the ``moescope`` command."""

    DONE = 0
    INTERNAL = 1
    USAGE = 2
    UNREADABLE = 3
    DATA_MISSING = 4
    CONDITION_MET = 5
    INTERRUPTED = 130


class MoescopeError(Exception):
    """A failure that the user can act on.

    ``message`` says what failed and where; ``hint`` says what to do next; ``code`` is a stable
    kebab-case name for scripts.
    """

    def __init__(self, message: str, *, hint: str = "", code: str = "error", exit_code: ExitCode = ExitCode.USAGE):
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code
        self.exit_code = exit_code


class InputUnreadableError(MoescopeError):
    """Nothing useful could be read from the input (exit code 3)."""

    def __init__(self, message: str, *, hint: str = "", code: str = "input-unreadable"):
        super().__init__(message, hint=hint, code=code, exit_code=ExitCode.UNREADABLE)


class DataMissingError(MoescopeError):
    """The input is readable but lacks what the question needs (exit code 4)."""

    def __init__(self, message: str, *, hint: str = "", code: str = "data-missing"):
        super().__init__(message, hint=hint, code=code, exit_code=ExitCode.DATA_MISSING)


class UnknownNameError(MoescopeError, KeyError):
    """What was asked for by name does not exist; the message lists the names there are. Also a :class:`KeyError`."""

    def __init__(self, name: object, kind: str, known: Iterable[str]):
        super().__init__(f"{name!r} is no {kind}; there are {', '.join(known)}", code="unknown-name")

    __str__ = Exception.__str__
