"""Only the folders named on the command line are read: a link in them that leads elsewhere is refused."""

from __future__ import annotations

import os
from pathlib import Path

from moescope.errors import MoescopeError
from moescope.views.model import Analysis
from moescope_app.runs import Analyze, Progress


def inside_only(analyze: Analyze) -> Analyze:
    """``analyze`` for folders whose links stay inside them; others raise :class:`MoescopeError`, named in the page."""

    def checked(path: Path, show: Progress) -> Analysis:
        link = leading_outside(path)
        if link is not None:
            message = f"{link.relative_to(path.absolute())} is a link that leads out of the folder."
            hint = (
                "Serve the folder it leads to, or pass --follow-links if everyone who can open this page may read it."
            )
            raise MoescopeError(message, hint=hint, code="link-outside")
        return analyze(path, show)

    return checked


def leading_outside(folder: Path) -> Path | None:
    """The first link under ``folder`` whose target lies outside it; None where all stay inside."""
    base, home = folder.absolute(), folder.resolve()
    for where, folders, names in os.walk(base):
        for name in sorted([*folders, *names]):
            path = Path(where, name)
            if path.is_symlink() and not path.resolve().is_relative_to(home):
                return path
    return None
