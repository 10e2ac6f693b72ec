"""Folders of Kineto traces, read once into a columnar store.

``open_directory(path)`` gives a :class:`TraceDirectory` of :class:`RankTrace`s; ``fingerprint(path)`` identifies the
state of the input. What is named here is loaded when first asked for, so that a helper process loads no more than
it uses.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moescope.trace.defaults import reading_defaults
    from moescope.trace.directory import TraceDirectory, fingerprint, open_directory
    from moescope.trace.model import CATEGORIES, EVENT_SCHEMA, KINDS, Problem, ProcessGroup
    from moescope.trace.ranktrace import RankTrace

__all__ = [
    "CATEGORIES",
    "EVENT_SCHEMA",
    "KINDS",
    "Problem",
    "ProcessGroup",
    "RankTrace",
    "TraceDirectory",
    "fingerprint",
    "open_directory",
    "reading_defaults",
]

_HOMES = {
    "defaults": ("reading_defaults",),
    "directory": ("TraceDirectory", "fingerprint", "open_directory"),
    "model": ("CATEGORIES", "EVENT_SCHEMA", "KINDS", "Problem", "ProcessGroup"),
    "ranktrace": ("RankTrace",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
