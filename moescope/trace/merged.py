"""Files in which the traces of several ranks were merged: split where the processes tell, else refused."""

from __future__ import annotations

import re
from collections.abc import Mapping

import polars as pl

from moescope.trace.tables import Tables

_RANK_IN_NAME = (
    re.compile(r"\brank[\s:_#-]*(\d{1,6})(?!\d)", re.IGNORECASE),
    re.compile(r"^\[(?:[^\]]*[-_ ])?TP[-_ ]?(\d{1,6})(?!\d)", re.IGNORECASE),  # SGLang: [TP00-EP00] 1234
)
_OWN_CATEGORIES = ("cpu_op", "annotation", "gpu_annotation", "kernel", "copy", "memset", "runtime", "python", "sync")


class MergedError(Exception):
    """The file holds several ranks, and which events are whose cannot be told."""


def ranks_of_processes(tables: Tables, labels: Mapping[str, str]) -> dict[int, int] | None:
    """Process -> rank where the file holds several ranks, None where it holds one.

    ``labels``: names of the processes, by ``"process_name {pid}"`` and ``"process_labels {pid}"``.
    Raises :class:`MergedError` where several ranks are there and not all processes tell theirs.
    """
    owners = _named_ranks(labels)
    if len(set(owners.values())) < 2:
        if tables.parallel_steps > 1:  # no process of its own profiles another
            raise MergedError(
                f"several ranks were merged into it: {tables.parallel_steps} processes run the same profiler step"
            )
        return None
    own = tables.events.filter(pl.col("category").is_in(_OWN_CATEGORIES))
    processes = set(own["pid"].drop_nulls().unique().to_list())
    silent = sorted(processes - set(owners))
    if silent:
        raise MergedError(
            f"several ranks were merged into it ({len(set(owners.values()))} by their processes' names), and "
            f"{len(silent)} processes, such as {silent[0]}, do not tell their rank"
        )
    present = {process: rank for process, rank in owners.items() if process in processes}
    return present if len(set(present.values())) > 1 else None


def _named_ranks(labels: Mapping[str, str]) -> dict[int, int]:
    found = {}
    for key, text in labels.items():
        process = key.rpartition(" ")[2]
        match = next((m for rule in _RANK_IN_NAME if (m := rule.search(text))), None)
        if match is not None and process.lstrip("-").isdecimal():
            found[int(process)] = int(match[1])
    return found
