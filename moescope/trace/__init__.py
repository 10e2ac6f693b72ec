"""Folders of Kineto traces, read once into a columnar store.

``open_directory(path)`` gives a :class:`TraceDirectory` of :class:`RankTrace`s; ``fingerprint(path)`` identifies the
state of the input.
"""

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
]
