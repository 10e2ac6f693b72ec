"""One offline HTML file with everything an analysis says."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from moescope.errors import MoescopeError
from moescope.report.page import DEFAULT_BUDGET_BYTES, render
from moescope.report.redact import redact
from moescope.views.model import Analysis

__all__ = ["DEFAULT_BUDGET_BYTES", "redact", "refuse_existing", "render", "write_report"]


def write_report(
    analysis: Analysis,
    path: Path,
    *,
    force: bool = False,
    hide_names: bool = True,
    budget_bytes: int = DEFAULT_BUDGET_BYTES,
) -> int:
    """Write the report to ``path`` and return its size in bytes.

    An existing file is replaced only with ``force``; the file appears whole or not at all. Host names and directories
    are taken out unless ``hide_names`` is false.
    """
    refuse_existing(path, force=force)
    page = render(redact(analysis) if hide_names else analysis, budget_bytes=budget_bytes).encode()
    write_whole(path, page)
    return len(page)


def refuse_existing(path: Path, *, force: bool) -> None:
    """Raise where ``path`` exists and may not be replaced."""
    if path.is_dir():
        raise MoescopeError(f"{path} is a folder.", hint="Name a file, for example report.html.", code="is-a-folder")
    if path.exists() and not force:
        raise MoescopeError(f"{path} exists already.", hint="Choose another name or pass --force.", code="file-exists")


def write_whole(path: Path, content: bytes) -> None:
    """Write beside ``path``, then rename, so that no half-written file survives."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    except OSError as error:
        raise MoescopeError(
            f"Can't write {path}: {error.strerror}.",
            hint="Choose a folder that exists and is writable.",
            code="unwritable",
        ) from error
    beside = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        beside.chmod(0o644)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
