"""Unpickling of plain data alone: dicts, lists, tuples, strings, numbers, bytes, booleans and None.

A pickle is a program for a small machine, and some of its instructions call whatever they name. Small files are read
by a machine that knows only the instructions which put plain data together, so there is nothing that could load code.
It is written in Python and slow; larger files go to a process of their own, where pickle's fast machine may look up no
name at all, within bounds of memory and time, and only plain data comes back.
"""

from __future__ import annotations

import io
import marshal
import pickle
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar

MAX_BYTES = 1 << 30
SMALL_BYTES = 1 << 18
TIMEOUT_S = 300

_PLAIN = (
    "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1",
    "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES",
    "SHORT_BINBYTES", "BINBYTES8", "BINSTRING", "SHORT_BINSTRING", "EMPTY_LIST", "APPEND", "APPENDS", "LIST",
    "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "BINGET",
    "LONG_BINGET", "BINPUT", "LONG_BINPUT", "MEMOIZE",
)  # fmt: skip
"""Instructions by pickle's own names for them."""

DAMAGE = (
    pickle.UnpicklingError, EOFError, OSError, ValueError, TypeError, IndexError, AttributeError, OverflowError,
    MemoryError, RecursionError,
)  # fmt: skip
"""What a damaged file can lead to."""


class NotPlainError(ValueError):
    """The file is no pickle of plain data; the message says what stands in the way."""


class _PlainUnpickler(pickle._Unpickler):
    """The unpickler in Python, because its table of instructions can be cut."""

    dispatch: ClassVar = {code: pickle._Unpickler.dispatch[code] for name in _PLAIN for code in getattr(pickle, name)}

    def find_class(self, module: str, name: str) -> Any:
        raise NotPlainError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise NotPlainError(f"it refers to {pid!r} outside")


def load_plain(path: Path, max_bytes: int = MAX_BYTES, small_bytes: int = SMALL_BYTES) -> Any:
    """The data in the file; raises ``NotPlainError`` where it holds more than plain data, is damaged or too large."""
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise NotPlainError(f"it has {size / 2**20:.0f} MiB, and {max_bytes / 2**20:.0f} MiB are read at most")
        if size > small_bytes:
            return _in_a_process(path)
        return _PlainUnpickler(io.BytesIO(path.read_bytes())).load()
    except KeyError as error:
        raise NotPlainError(_instruction(error)) from error
    except NotPlainError:
        raise
    except DAMAGE as error:
        raise NotPlainError(f"it is damaged ({type(error).__name__}: {error})") from error


def _instruction(error: KeyError) -> str:
    code = error.args[0] if error.args else None
    named = [name for name in pickle.__all__ if isinstance(code, int) and getattr(pickle, name, None) == bytes([code])]
    return f"it holds the instruction {named[0]}, which plain data does not need" if named else "it is damaged"


def _in_a_process(path: Path) -> Any:
    source = files("moescope.trace").joinpath("plain_pickle_worker.py").read_text(encoding="utf-8")
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", source, str(path.resolve())],
            capture_output=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise NotPlainError(f"it took longer than {TIMEOUT_S} s to read") from error
    if done.returncode != 0:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise NotPlainError(last[0] if last else f"it ended its reader (exit status {done.returncode})")
    return marshal.loads(done.stdout)
