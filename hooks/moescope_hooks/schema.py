"""The four telemetry tables: columns, types and where their files lie. Imports polars only, never torch.

``telemetry/TABLE/rank{r}-{part}.parquet`` holds one flushed part of one rank's rows of one table; parts count from 0.
Times are integer nanoseconds of the host's Unix clock, the clock of Kineto traces.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl

TELEMETRY_SCHEMA = "moescope.telemetry/1"

EXPERT_LOAD: Mapping[str, pl.DataType] = {
    "rank": pl.Int32(),
    "step": pl.Int64(),
    "microbatch": pl.Int32(),
    "layer": pl.Int32(),
    "counts": pl.List(pl.Int64()),
    "dropped": pl.List(pl.Int64()),
    "entropy": pl.Float32(),
    "margin": pl.Float32(),
    "bf16_flips": pl.Int64(),
}
"""One row per source rank, step, microbatch and MoE layer.

``counts``: assignments this rank's tokens made to each global expert, before capacity, [num_experts].
``dropped``: how many of them capacity dropped, per expert; null where nothing can be dropped.
``entropy``: mean over tokens of the entropy of the router's distribution over ln(num_experts): 1 undecided, 0 certain.
``margin``: mean over tokens of the score gap between the last expert selected and the first one not selected.
``bf16_flips``: selections that a router computed in bfloat16 would have made differently. The last three may be null.
"""

COLLECTIVE: Mapping[str, pl.DataType] = {
    "rank": pl.Int32(),
    "step": pl.Int64(),
    "microbatch": pl.Int32(),
    "layer": pl.Int32(),
    "phase": pl.String(),
    "backward": pl.Boolean(),
    "group": pl.String(),
    "seq": pl.Int64(),
    "send_bytes": pl.List(pl.Int64()),
    "recv_bytes": pl.List(pl.Int64()),
    "arrival_ns": pl.Int64(),
    "end_ns": pl.Int64(),
}
"""One row per rank and collective.

``phase``: counts, dispatch, combine, router (a balance over the global batch) or grad_reduce; ``microbatch`` and
``layer`` are null for grad_reduce.
``group``: name of the process group. ``seq``: index of the collective within the group, from the start of observation;
a resumed run counts from 0 again.
``send_bytes`` and ``recv_bytes``: one entry per member of the group in group order (own part included) for an
all-to-all; a single entry, the size of the buffer, for a reduction.
``arrival_ns``: when the rank was ready; ``end_ns``: when its part was complete. On a GPU both come from device
events, anchored to the host clock.
"""

STEP: Mapping[str, pl.DataType] = {
    "rank": pl.Int32(),
    "step": pl.Int64(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "tokens": pl.Int64(),
    "loss": pl.Float64(),
    "validation_loss": pl.Float64(),
    "gradient_norm": pl.Float64(),
    "memory_allocated_peak_bytes": pl.Int64(),
    "memory_reserved_peak_bytes": pl.Int64(),
    "parameter_bytes": pl.Int64(),
    "gradient_bytes": pl.Int64(),
    "optimizer_bytes": pl.Int64(),
}
"""One row per rank and step. ``tokens``: what this rank trained on. Memory peaks are those of the device's caching
allocator during the step, null without one. ``*_bytes`` of parameters, gradients and optimizer: what this rank holds.
"""

CLOCK: Mapping[str, pl.DataType] = {
    "rank": pl.Int32(),
    "peer": pl.Int32(),
    "when": pl.String(),
    "offset_ns": pl.Int64(),
    "round_trip_ns": pl.Int64(),
    "measured_at_ns": pl.Int64(),
}
"""One row per measured rank pair and moment (``when``: start or end). ``offset_ns``: the peer's clock minus this
rank's, from the round trip that took least time, ``round_trip_ns``; the truth lies within half a round trip of it.
``measured_at_ns`` is on this rank's clock.
"""

TABLES: Mapping[str, Mapping[str, pl.DataType]] = {
    "expert_load": EXPERT_LOAD,
    "collective": COLLECTIVE,
    "step": STEP,
    "clock": CLOCK,
}


def empty_table(name: str) -> pl.DataFrame:
    """An empty frame with the columns of table ``name``."""
    return pl.DataFrame(schema=dict(TABLES[name]))


def part_path(telemetry: Path, table: str, rank: int, part: int) -> Path:
    """Where part ``part`` of ``rank``'s rows of ``table`` lies below the run's telemetry folder."""
    return telemetry / table / f"rank{rank}-{part:05d}.parquet"
