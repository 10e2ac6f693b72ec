"""Calls of the driver's allocator inside the steps: how many, how long, and how many were retries.

torch's caching allocator asks the driver only when no cached block fits. When the driver refuses, it gives cached
memory back, which waits for the device, and asks again: a free directly followed by an allocation on the same thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from moescope.align.steps import assign_steps
from moescope.attribution.device import ALLOCATOR_CALLS


@dataclass(frozen=True, slots=True)
class AllocatorCalls:
    """``calls``: (number, ns on the host) by call, over the rank's ``num_steps`` steps."""

    calls: dict[str, tuple[int, int]]
    num_retries: int
    num_steps: int


def allocator_calls(events: pl.DataFrame, windows: pl.DataFrame) -> AllocatorCalls:
    """Those that the trace records."""
    name = pl.col("name").cast(pl.String)
    found = events.filter((pl.col("category") == "runtime") & name.str.contains(ALLOCATOR_CALLS))
    found = found.select("tid", "start_ns", "dur_ns", name=name)
    found = found.with_columns(step=assign_steps(found["start_ns"], windows)).drop_nulls("step").sort("start_ns")
    sums = found.group_by("name").agg(count=pl.len(), ns=pl.col("dur_ns").sum()).sort("name")
    is_free = pl.col("name").str.contains("Free|Unmap")
    retried = is_free & ~is_free.shift(-1).over("tid").fill_null(True)
    return AllocatorCalls(
        calls={call: (count, ns) for call, count, ns in sums.rows()},
        num_retries=int(found.select(retried.sum()).item() or 0),
        num_steps=len(windows),
    )
