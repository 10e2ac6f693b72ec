"""Results kept beside the store, so an analysed folder opens at once.

A result is keyed by the folder, the identity of every input file, the options and the version; a key that does not
match is ignored, a file that cannot be decoded too. Only plain data is stored: nothing in it can run code.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

import msgspec

from moescope import __version__
from moescope.telemetry.foreign import find_foreign
from moescope.trace import fingerprint
from moescope.trace.snapshots import snapshot_files
from moescope.trace.store import store_folder
from moescope.views.model import SCHEMA, Analysis

FORMAT = 21
"""Raised when the stored form or the meaning of a number changes."""


MOST_RESULTS = 16
"""Kept per folder: a run that is still going gives a new result whenever it is looked at."""


def result_path(path: Path, options: object) -> Path:
    """Where the result for this input and these options lies."""
    digest = hashlib.blake2b(digest_size=16)
    place = os.fsencode(path.resolve())
    question = f" {SCHEMA} {__version__} {FORMAT} {options!r} {fingerprint(path)}"
    digest.update(place + question.encode("utf-8", "backslashreplace"))
    others = find_foreign(path)
    beside = [path / "run.json", *path.glob("telemetry/**/*"), *others.routing, *others.inspector]
    for file in sorted([*beside, *snapshot_files(path)]):
        if file.is_file():
            stat = file.stat()
            digest.update(f"{file} {stat.st_size} {stat.st_mtime_ns}".encode("utf-8", "surrogateescape"))
    folder, _ = store_folder(path if path.is_dir() else path.parent)
    return folder / f"analysis-{digest.hexdigest()}.json"


def strips_path(result: Path) -> Path:
    """Where the timeline's strips for a result lie."""
    return result.with_suffix(".strips")


def load(file: Path) -> Analysis | None:
    """The stored result; None where there is none or it does not decode."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Analysis)
    except (OSError, msgspec.DecodeError):
        return None


def save(file: Path, analysis: Analysis) -> None:
    """Write beside, then rename; a folder that cannot be written costs only the speed of the next opening."""
    beside = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(msgspec.json.encode(analysis))
        beside.replace(file)
        kept = sorted(file.parent.glob("analysis-*.json"), key=lambda one: one.stat().st_mtime_ns, reverse=True)
        for old in kept[MOST_RESULTS:]:
            old.unlink(missing_ok=True)
            strips_path(old).unlink(missing_ok=True)
    except OSError:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
