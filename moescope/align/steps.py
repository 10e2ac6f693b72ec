"""The windows of one rank's training steps.

A step begins when the host begins it and the device has finished the step before; it ends when the next one
begins, the last with its own last device event. So the windows of consecutive steps touch, and a kernel
that outlives the host's ``ProfilerStep`` range stays in the step that launched it.
"""

from __future__ import annotations

import numpy as np
import polars as pl

STEP_PATTERN = r"^ProfilerStep\s*#\s*(\d+)"
MAX_GAP_SHARE = 0.5
"""Consecutive steps further apart than this share of the median step are not joined."""


def step_windows(events: pl.DataFrame, launch_ns: pl.Series) -> pl.DataFrame:
    """Windows ``step, start_ns, end_ns`` (Int64), in time order; one row ``step = 0`` where no step is marked.

    ``events``: a rank's events; ``launch_ns``: [len(events)] when the host launched a device event, null for host
    events. Empty if there are no events.
    """
    marks = (
        events.filter(
            (pl.col("category") == "annotation") & pl.col("name").cast(pl.String).str.starts_with("ProfilerStep")
        )
        .select(
            step=pl.col("name").cast(pl.String).str.extract(STEP_PATTERN).cast(pl.Int64, strict=False),
            start_ns="start_ns",
            end_ns=pl.col("start_ns") + pl.col("dur_ns"),
        )
        .drop_nulls()
        .unique("step", keep="first")
        .sort("start_ns")
    )
    if marks.is_empty():
        return _whole(events)
    return _gate_on_device(marks, events, launch_ns)


def _whole(events: pl.DataFrame) -> pl.DataFrame:
    schema = {"step": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}
    active = events.filter(~pl.col("category").is_in(["other", "overhead"]))
    active = active if not active.is_empty() else events
    if active.is_empty():
        return pl.DataFrame(schema=schema)
    low, high = active["start_ns"].min(), (active["start_ns"] + active["dur_ns"]).max()
    return pl.DataFrame({"step": [0], "start_ns": [low], "end_ns": [high]}, schema=schema)


def _gate_on_device(marks: pl.DataFrame, events: pl.DataFrame, launch_ns: pl.Series) -> pl.DataFrame:
    host_start, host_end = marks["start_ns"].to_numpy(), marks["end_ns"].to_numpy()
    launched = launch_ns.drop_nulls().to_numpy()
    mask = launch_ns.is_not_null().to_numpy()
    ended = (events["start_ns"].to_numpy() + events["dur_ns"].to_numpy())[mask]
    owner = np.searchsorted(host_start, launched, side="right") - 1
    inside = (owner >= 0) & ((owner < len(host_start) - 1) | (launched <= host_end[-1]))
    device_end = np.full(len(host_start), np.iinfo(np.int64).min)
    np.maximum.at(device_end, owner[inside], ended[inside])
    end = np.maximum.accumulate(np.maximum(host_end, device_end))
    start = host_start.copy()
    start[1:] = np.maximum(host_start[1:], end[:-1])
    end = np.maximum(end, start)
    gap = start[1:] - end[:-1]
    joined = gap <= MAX_GAP_SHARE * np.median(end - start)
    end[:-1] = np.where(joined, start[1:], end[:-1])
    return pl.DataFrame({"step": marks["step"], "start_ns": start, "end_ns": end})


def assign_steps(moment_ns: pl.Series, windows: pl.DataFrame) -> pl.Series:
    """The step whose window holds each moment, null outside all windows; [len(moment_ns)]."""
    if windows.is_empty():
        return pl.Series("step", [None] * len(moment_ns), dtype=pl.Int64)
    slot = np.searchsorted(windows["start_ns"].to_numpy(), moment_ns.to_numpy(), side="right") - 1
    inside = (slot >= 0) & (moment_ns.to_numpy() <= windows["end_ns"].to_numpy()[np.maximum(slot, 0)])
    steps = windows["step"].to_numpy()[np.maximum(slot, 0)]
    return pl.Series("step", steps).set(pl.Series(~inside), None)
