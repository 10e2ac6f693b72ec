"""Files in which the traces of several ranks were merged: split where the processes tell, else refused."""

from __future__ import annotations

import re
from collections.abc import Mapping

import polars as pl

from moescope.trace.tables import in_categories

_RANK_IN_NAME = (
    re.compile(r"\brank[\s:_#-]*(\d{1,6})(?!\d)", re.IGNORECASE),
    re.compile(r"^\[(?:[^\]]*[-_ ])?TP[-_ ]?(\d{1,6})(?!\d)", re.IGNORECASE),  # SGLang: [TP00-EP00] 1234
)
_STEP = "ProfilerStep#"
_OWN_CATEGORIES = ("cpu_op", "annotation", "gpu_annotation", "kernel", "copy", "memset", "runtime", "python", "sync")


class MergedError(Exception):
    """The file holds several ranks, and which events are whose cannot be told."""


def ranks_of_processes(events: pl.DataFrame, labels: Mapping[str, str]) -> dict[int, int] | None:
    """Process -> rank where the file holds several ranks, None where it holds one.

    ``labels``: names of the processes, by ``"process_name {pid}"`` and ``"process_labels {pid}"``.
    Raises :class:`MergedError` where several ranks are there and not all processes tell theirs.
    """
    owners = _named_ranks(labels)
    if len(set(owners.values())) < 2:
        _refuse_parallel_steps(events)
        return None
    own = events.filter(pl.col("category").is_in(_OWN_CATEGORIES))
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


def _refuse_parallel_steps(events: pl.DataFrame) -> None:
    """Raise where one profiler step runs in several processes at a time: no process of its own profiles another."""
    is_range = pl.Series(in_categories(events, ("annotation",)))
    names, processes = events["name"].filter(is_range), events["pid"].filter(is_range)
    if not any(name.startswith(_STEP) for name in names.unique().cast(pl.String)):
        return
    steps = pl.DataFrame({"name": names.cast(pl.String), "pid": processes}).filter(
        pl.col("name").str.starts_with(_STEP)
    )
    most = steps.group_by("name").agg(pl.col("pid").n_unique())["pid"].max()
    if isinstance(most, int) and most > 1:
        raise MergedError(f"several ranks were merged into it: {most} processes run the same profiler step")
