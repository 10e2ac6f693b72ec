"""The places that commands write to: one is written over only where the same command made what is there.

Each command leaves a mark by which :class:`Kind` knows its work again. What a command reads, and the folders that a
person lives in, are never written over, whatever marks they hold.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from moescope.errors import MoescopeError

MANIFEST = ".moescope-export.json"
"""Lists the files of an exported folder, itself not among them."""
REPORT_MARK = '<meta name="generator" content="moescope '
BASELINE_SCHEMA = "moescope.baseline/1"
_HEAD_BYTES = 2_000


@dataclass(frozen=True, slots=True)
class Kind:
    """What one command makes.

    ``is_ours`` knows it by its mark; ``parts`` are what a new run replaces of an earlier one; ``shares`` says that
    other files may lie in the folder beside the parts; ``is_file`` that it is no folder.
    """

    name: str
    is_ours: Callable[[Path], bool]
    parts: tuple[str, ...] = ()
    shares: bool = False
    is_file: bool = False


def check_place(target: Path, kind: Kind, *, force: bool, reads: Iterable[Path | None] = ()) -> None:
    """Raise where writing to ``target`` would cost anything but an earlier output of ``kind`` that ``force`` replaces.

    ``reads``: the files and folders that the command reads.
    """
    if not _occupied(target, kind):
        return
    why = _why_kept(target, kind, [path for path in reads if path is not None])
    if why:
        hint = "Choose another place, or move what is there away yourself; --force doesn't replace it."
        raise MoescopeError(f"{target} {why}", hint=hint, code="not-replaced")
    if not force:
        hint = f"It is {kind.name}: replace it with --force, or choose another place."
        raise MoescopeError(f"{target} exists already", hint=hint, code="exists")


def remove_parts(target: Path, kind: Kind) -> None:
    """Take away the parts of an earlier run; what else lies beside them stays."""
    for part in kind.parts:
        path = target / part
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def write_manifest(folder: Path, names: Iterable[str]) -> None:
    """Mark ``folder`` as an export that holds the files ``names``."""
    manifest = {"schema": "moescope.export/1", "files": sorted(names)}
    (folder / MANIFEST).write_text(json.dumps(manifest) + "\n", encoding="utf-8")


def _occupied(target: Path, kind: Kind) -> bool:
    """Whether anything is there that writing could cost."""
    if not os.path.lexists(target):
        return False
    if kind.is_file or not target.is_dir():
        return True
    if kind.shares:
        return any(os.path.lexists(target / part) for part in kind.parts)
    return any(target.iterdir()) or (not kind.parts and (target.is_symlink() or _lived_in(target) != ""))


def _why_kept(target: Path, kind: Kind, reads: list[Path]) -> str:
    """Why ``target`` is not replaced, empty where it may be."""
    if target.is_symlink():
        return "is a symbolic link"
    if any(_holds(target, path) for path in reads):
        return "is, or holds, what this command reads"
    if not kind.is_ours(target):
        return f"is not {kind.name}"
    return _lived_in(target)


def _lived_in(target: Path) -> str:
    if _holds(target, Path.cwd()):
        return "is, or holds, the working directory"
    if _holds(target, Path("~").expanduser()):
        return "is, or holds, the home directory"
    return "is the root of a file system" if target.is_mount() else ""


def _holds(target: Path, path: Path) -> bool:
    return path.resolve().is_relative_to(target.resolve())


def _is_export(target: Path) -> bool:
    """Whether a manifest lists every file that is there."""
    manifest = _json(target / MANIFEST)
    files = manifest.get("files")
    if manifest.get("schema") != "moescope.export/1" or not isinstance(files, list):
        return False
    return all(path.name in {MANIFEST, *map(str, files)} and _plain_file(path) for path in target.iterdir())


def _is_run_of(command: str) -> Callable[[Path], bool]:
    def is_ours(target: Path) -> bool:
        words = _json(target / "run.json").get("command")
        return isinstance(words, list) and words[:2] == ["moescope", command]

    return is_ours


def _is_marked(mark: str) -> Callable[[Path], bool]:
    def is_ours(target: Path) -> bool:
        if not _plain_file(target):
            return False
        with open(target, "rb") as file:
            return mark.encode() in file.read(_HEAD_BYTES)

    return is_ours


def _plain_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _json(path: Path) -> dict[str, object]:
    """The object in a file; empty where there is none."""
    if not _plain_file(path):
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


EXPORT = Kind("a folder of moescope export, with nothing of yours added", _is_export)
REPORT = Kind("a file of moescope report", _is_marked(REPORT_MARK), is_file=True)
BASELINE = Kind("a file of moescope baseline", _is_marked(f'"schema": "{BASELINE_SCHEMA}"'), is_file=True)
TRAINED = Kind(
    "a run of moescope train",
    _is_run_of("train"),
    ("traces", "telemetry", "checkpoints", ".moescope", "run.json", "config.toml"),
    shares=True,
)
SIMULATED = Kind(
    "a run of moescope simulate",
    _is_run_of("simulate"),
    ("traces", "telemetry", ".moescope", "truth.json", "run.json"),
)
