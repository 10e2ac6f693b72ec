"""Unpickling of plain data alone: dicts, lists, tuples, strings, numbers, bytes, booleans and None.

A pickle is a program for a small machine, and some of its instructions call whatever they name. Here the machine knows
only the instructions that put plain data together, so there is nothing that could load code. The data lies in memory
whole before it is read, so that no length which it claims can ask for more.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any, ClassVar

MAX_BYTES = 1 << 29

_PLAIN = (
    "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1",
    "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES",
    "SHORT_BINBYTES", "BINBYTES8", "BINSTRING", "SHORT_BINSTRING", "EMPTY_LIST", "APPEND", "APPENDS", "LIST",
    "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "BINGET",
    "LONG_BINGET", "BINPUT", "LONG_BINPUT", "MEMOIZE",
)  # fmt: skip
"""Instructions by pickle's own names for them."""


class NotPlainError(ValueError):
    """The file is no pickle of plain data; the message says what stands in the way."""


class _PlainUnpickler(pickle._Unpickler):
    """The unpickler in Python, because its table of instructions can be cut."""

    dispatch: ClassVar = {code: pickle._Unpickler.dispatch[code] for name in _PLAIN for code in getattr(pickle, name)}

    def find_class(self, module: str, name: str) -> Any:
        raise NotPlainError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise NotPlainError(f"it refers to {pid!r} outside")


def load_plain(path: Path, max_bytes: int = MAX_BYTES) -> Any:
    """The data in the file; raises ``NotPlainError`` where it holds more than plain data, is damaged or too large."""
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise NotPlainError(f"it has {size / 2**20:.0f} MiB, and {max_bytes / 2**20:.0f} MiB are read at most")
        return _PlainUnpickler(io.BytesIO(path.read_bytes())).load()
    except KeyError as error:
        raise NotPlainError(_instruction(error)) from error
    except NotPlainError:
        raise
    except (pickle.UnpicklingError, EOFError, OSError, ValueError, TypeError, IndexError, AttributeError,
            OverflowError, MemoryError, RecursionError) as error:  # fmt: skip
        raise NotPlainError(f"it is damaged ({type(error).__name__}: {error})") from error


def _instruction(error: KeyError) -> str:
    code = error.args[0] if error.args else None
    named = [name for name in pickle.__all__ if isinstance(code, int) and getattr(pickle, name, None) == bytes([code])]
    return f"it holds the instruction {named[0]}, which plain data does not need" if named else "it is damaged"
