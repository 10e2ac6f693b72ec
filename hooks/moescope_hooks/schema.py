"""The four telemetry tables: columns, types and where their files lie. Imports polars only, never torch.

``telemetry/TABLE/rank{r}-{part}.parquet`` holds one flushed part of one rank's rows of one table; parts count from 0.
The two large tables lie there packed, one row per step: see :data:`PARTS`.
Times are integer nanoseconds of the host's Unix clock, the clock of Kineto traces.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
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
``bf16_flips``: selections that a router computed in bfloat16 would have made differently. The last three are of the
first two microbatches of a step (the first of one that is traced), else null; and null where the router's logits are
not known.
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

PACKED_EXPERT_LOAD: Mapping[str, pl.DataType] = {
    "rank": pl.Int32(),
    "step": pl.Int64(),
    "num_experts": pl.Int32(),
    "microbatch": pl.List(pl.Int32()),
    "layer": pl.List(pl.Int32()),
    "counts": pl.Binary(),
    "dropped": pl.Binary(),
    "entropy": pl.List(pl.Float32()),
    "margin": pl.List(pl.Float32()),
    "bf16_flips": pl.List(pl.Int64()),
}
"""One row per rank, step and number of experts, for the n rows of :data:`EXPERT_LOAD` that it stands for.

``counts``: :mod:`moescope_hooks.packing` of [n, num_experts], a chain per layer; ``dropped`` likewise, null where
nothing can be dropped.
"""

PACKED_COLLECTIVE: Mapping[str, pl.DataType] = {
    "rank": pl.Int32(),
    "step": pl.Int64(),
    "microbatch": pl.List(pl.Int32()),
    "layer": pl.List(pl.Int32()),
    "phase": pl.List(pl.String()),
    "backward": pl.List(pl.Boolean()),
    "group": pl.List(pl.String()),
    "seq": pl.Binary(),
    "arrival_ns": pl.Binary(),
    "duration_ns": pl.Binary(),
    "send": pl.List(pl.Int32()),
    "recv": pl.List(pl.Int32()),
    "list_lengths": pl.List(pl.Int32()),
    "unit_bytes": pl.Int64(),
    "lists": pl.List(pl.Binary()),
}
"""One row per rank and step, for the n rows of :data:`COLLECTIVE` that it stands for.

What a dispatch sends, its combine receives, and the backward pass sends again: ``send`` and ``recv`` say which of the
step's distinct lists of sizes each collective has, numbered as they first occur in ``send``, then in ``recv``.
``lists`` holds those of each length, shortest first, [lists of that length, length], in units of ``unit_bytes``, a
chain per layer, phase and direction of their first use. ``seq`` (a chain per group), ``arrival_ns`` (one chain) and
``duration_ns`` are [n, 1]. All four are packed by :mod:`moescope_hooks.packing`.
"""

PARTS: Mapping[str, Mapping[str, pl.DataType]] = {
    "expert_load": PACKED_EXPERT_LOAD,
    "collective": PACKED_COLLECTIVE,
    "step": STEP,
    "clock": CLOCK,
}
"""The columns of the files. Readers take the columns of :data:`TABLES` too, which earlier files have."""


def empty_table(name: str) -> pl.DataFrame:
    """An empty frame with the columns of table ``name``."""
    return pl.DataFrame(schema=dict(TABLES[name]))


def list_chains(sent: Sequence[int], received: Sequence[int], names: Sequence[Hashable]) -> list[Hashable]:
    """For each distinct list, what it was first used for: the same of another microbatch differs little from it."""
    chains: dict[int, Hashable] = {}
    for direction, used in enumerate((sent, received)):
        for number, name in zip(used, names, strict=True):
            chains.setdefault(number, (direction, name))
    return [chains[number] for number in range(len(chains))]


def part_path(telemetry: Path, table: str, rank: int, part: int) -> Path:
    """Where part ``part`` of ``rank``'s rows of ``table`` lies below the run's telemetry folder."""
    return telemetry / table / f"rank{rank}-{part:05d}.parquet"
