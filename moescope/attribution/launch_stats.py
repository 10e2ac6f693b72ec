"""How a rank's host launches work: how often, how long a launch waits, how deep the queue is, what graphs replay."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from moescope.align.ranges import IntArray
from moescope.align.steps import assign_steps
from moescope.attribution.device import DEVICE_CATEGORIES
from moescope.attribution.idle import GRAPH_LAUNCH


@dataclass(frozen=True, slots=True)
class LaunchStats:
    """Of one rank and window; counts are sums over its steps.

    ``latency``: from the beginning of the launching call to the beginning of the device's work, which includes waiting
    in the queue. ``queue``: work launched and not yet begun, counted with each launch.
    """

    num_steps: int
    window_ns: int
    """Of all steps together."""
    num_device_events: int
    num_launches: int
    """Calls that launched them; one call may launch a whole graph."""
    num_graph_launches: int
    num_in_graphs: int
    """Device events that graph launches started."""
    num_unlinked: int
    """Device events whose launch is not recorded."""
    call_median_ns: float | None
    latency_median_ns: float | None
    latency_p95_ns: float | None
    queue_mean: float | None
    queue_max: int | None


def launch_stats(events: pl.DataFrame, launch: pl.DataFrame, windows: pl.DataFrame) -> LaunchStats | None:
    """Of the device's events inside the steps; None on a host-only trace."""
    table = pl.concat([events.select("category", "start_ns", "correlation"), launch], how="horizontal")
    table = table.filter(pl.col("category").is_in(DEVICE_CATEGORIES))
    if table.is_empty():
        return None
    table = table.with_columns(step=assign_steps(table["start_ns"], windows)).drop_nulls("step")
    calls = events.filter((pl.col("category") == "runtime") & pl.col("correlation").is_not_null())
    calls = calls.select("correlation", "dur_ns", call=pl.col("name").cast(pl.String))
    linked = table.drop_nulls("launch_ns").join(calls.unique("correlation", keep="first"), on="correlation", how="left")
    is_graph = linked["call"].str.contains(GRAPH_LAUNCH).fill_null(False)
    single = linked.unique("correlation", keep="first")
    plain = linked.filter(~is_graph)
    waited = (plain["start_ns"] - plain["launch_ns"]).clip(0)
    depth = _depth(plain["launch_ns"].to_numpy(), plain["start_ns"].to_numpy())
    return LaunchStats(
        num_steps=len(windows),
        window_ns=int((windows["end_ns"] - windows["start_ns"]).sum()),
        num_device_events=len(table),
        num_launches=len(single),
        num_graph_launches=linked.filter(is_graph)["correlation"].n_unique(),
        num_in_graphs=int(is_graph.sum()),
        num_unlinked=int(table["launch_ns"].null_count()),
        call_median_ns=_number(single["dur_ns"].median()),
        latency_median_ns=_number(waited.median()),
        latency_p95_ns=_number(waited.quantile(0.95, interpolation="linear")),
        queue_mean=float(depth.mean()) if len(depth) else None,
        queue_max=int(depth.max()) if len(depth) else None,
    )


def _depth(launched: IntArray, begun: IntArray) -> IntArray:
    """Work that was launched before each launch or with it and has not begun by then, [n]."""
    order = np.sort(launched)
    started = np.searchsorted(np.sort(begun), order, side="right")
    depth: IntArray = np.arange(1, len(order) + 1) - started
    return np.maximum(depth, 0)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
