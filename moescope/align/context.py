"""Where the host was when it launched a device event: layer, microbatch, phase, operation.

The hooks record ranges named ``moescope::L3.mb0.dispatch.bwd``; other trainers' own annotations are mapped
to phases by the patterns below, without a layer. A device event belongs to the ranges that were open on the
launching thread at the moment of its launch, a host event to those open at its own start.
"""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from moescope.align.ranges import IntArray, innermost

RANGE_PATTERN = re.compile(
    r"^moescope::(?:L(?P<layer>\d{1,6})\.?)?(?:mb(?P<microbatch>\d{1,6})\.?)?(?P<phase>[a-z_]*?)"
    r"(?:(?P<backward>\.?bwd)|\.?recompute)?$"
)

FOREIGN_PHASES = (
    ("optimizer", r"^Optimizer\.step#|(?:^|[^a-z])optimizer[._ ]?step"),
    ("router", r"(?:^|[^a-z])(?:gate|gating|router|topk_?router)(?:$|[^a-z])"),
    ("dispatch", r"(?:^|[^a-z])(?:token_)?dispatch(?:$|[^a-z])"),
    ("combine", r"(?:^|[^a-z])combine(?:$|[^a-z])"),
    ("permute", r"(?:^|[^a-z])(?:permute|permutation)(?:$|[^a-z])"),
    ("unpermute", r"(?:^|[^a-z])unpermut"),
    ("shared", r"shared_?experts?"),
    ("experts", r"(?:^|[^a-z])(?:experts?|grouped_?mlp)(?:$|[^a-z])"),
    ("attention", r"(?:^|[^a-z])(?:self_?)?attention(?:$|[^a-z])"),
    ("grad_reduce", r"(?:^|[^a-z])grad(?:ient)?s?[._ ]?(?:all_?reduce|reduce|sync)"),
)
"""(phase, pattern) over other trainers' annotation names, lower-cased but for torch's own; first match wins."""

CONTEXT_SCHEMA = {"layer": pl.Int32, "microbatch": pl.Int32, "phase": pl.String, "backward": pl.Boolean}


def parse_range(name: str) -> tuple[int | None, int | None, str | None, bool] | None:
    """(layer, microbatch, phase, backward) of a range name; None where the name says no phase."""
    if found := RANGE_PATTERN.match(name):
        layer, microbatch = found["layer"], found["microbatch"]
        return (
            int(layer) if layer else None,
            int(microbatch) if microbatch else None,
            found["phase"] or None,
            bool(found["backward"]),
        )
    if name.startswith(("ProfilerStep", "nccl:", "gloo:", "mpi:")):
        return None
    for phase, pattern in FOREIGN_PHASES:
        if re.search(pattern, name) or re.search(pattern, name.lower()):
            return None, None, phase, "backward" in name.lower() or name.endswith(".bwd")
    return None


def launches(events: pl.DataFrame) -> pl.DataFrame:
    """``launch_ns, launch_end_ns, launch_tid`` of every event, [len(events)], null where no launch is recorded."""
    calls = (
        events.lazy()
        .filter((pl.col("category") == "runtime") & pl.col("correlation").is_not_null())
        .select(
            "correlation",
            launch_ns="start_ns",
            launch_end_ns=pl.col("start_ns") + pl.col("dur_ns"),
            launch_tid="tid",
        )
        .unique("correlation", keep="first")
    )
    on_device = pl.col("category").is_in(["kernel", "copy", "memset"])
    return (
        events.lazy()
        .select(correlation=pl.when(on_device).then(pl.col("correlation")))
        .join(calls, on="correlation", how="left", maintain_order="left")
        .select("launch_ns", "launch_end_ns", "launch_tid")
        .collect()
    )


def contexts(events: pl.DataFrame, moment_ns: IntArray, thread: IntArray) -> pl.DataFrame:
    """Layer, microbatch, phase and direction open on ``thread`` at ``moment_ns``; columns of CONTEXT_SCHEMA, [m].

    ``events``: all events of the rank. ``moment_ns``, ``thread``: [m]; a negative moment finds nothing.
    """
    annotations = events.lazy().filter(pl.col("category") == "annotation")
    ranges = annotations.select("tid", "start_ns", "dur_ns", name=pl.col("name").cast(pl.String)).collect()
    parsed = {name: parse_range(name) for name in ranges["name"].unique()}
    known = [name for name, value in parsed.items() if value is not None]
    ranges = ranges.filter(pl.col("name").is_in(known))
    slot = enclosing(ranges, moment_ns, thread)
    labels = [parsed[name] or (None, None, None, False) for name in ranges["name"]]
    table = pl.DataFrame(labels, schema=CONTEXT_SCHEMA, orient="row")
    nothing = pl.DataFrame([(None, None, None, None)], schema=CONTEXT_SCHEMA, orient="row")
    return pl.concat([table, nothing])[np.where(slot >= 0, slot, len(table))]


def enclosing(ranges: pl.DataFrame, moment_ns: IntArray, thread: IntArray) -> IntArray:
    """Row of ``ranges`` (columns tid, start_ns, dur_ns) innermost at each moment of its thread, -1 for none; [m]."""
    found = np.full(len(moment_ns), -1, dtype=np.int64)
    tids = ranges["tid"].to_numpy()
    start = ranges["start_ns"].to_numpy()
    end = start + ranges["dur_ns"].to_numpy()
    for tid in np.intersect1d(tids, thread):
        rows = np.flatnonzero(tids == tid)
        asked = np.flatnonzero(thread == tid)
        slot = innermost(start[rows], end[rows], moment_ns[asked])
        found[asked] = np.where(slot >= 0, rows[np.maximum(slot, 0)], -1)
    return found
