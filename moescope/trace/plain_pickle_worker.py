"""Reads one pickle of plain data, within bounds of memory, and gives the data back: run as a process of its own.

    python -I -c SOURCE FILE

writes the data to stdout as ``marshal`` does, or one line to stderr that says why it did not. No name is looked up, so
nothing can be called; the bound on memory stops instructions that claim room which the file does not fill.
"""

from __future__ import annotations

import marshal
import os
import pickle
import sys
from typing import Any

ROOM_BYTES = 1 << 30
ROOM_PER_BYTE = 40
"""Of memory for each byte of the file: short strings and numbers take some ten times their pickled size."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}, which plain data does not need")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError(f"it refers to {pid!r} outside")


def main(path: str) -> int:
    """Read ``path``; the exit status says whether data was written."""
    _bound(ROOM_BYTES + ROOM_PER_BYTE * os.path.getsize(path))
    try:
        with open(path, "rb") as stream:
            data = _Unpickler(stream).load()
        sys.stdout.buffer.write(marshal.dumps(data))
    except Exception as error:  # whatever a hostile file leads to is told and ends here
        print(f"it is damaged ({type(error).__name__}: {error})"[:500], file=sys.stderr)
        return 1
    return 0


def _bound(num_bytes: int) -> None:
    """Limit the process's memory where the system can."""
    try:
        import resource  # noqa: PLC0415 - not on every system
    except ImportError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = num_bytes if hard == resource.RLIM_INFINITY else min(num_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
