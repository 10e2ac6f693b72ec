"""Every matrix operation of one rank, counted once, with its shape, its place in the step and its kernels.

Operations nest (``aten::linear`` calls ``aten::addmm``; on a CPU ``aten::_grouped_mm`` calls ``aten::mm``): the
outermost whose shapes tell its FLOPs is counted. Its kernels are those launched while it ran on its thread, or,
where no launch is recorded, those that carry the external id of an operation in it. On a host-only trace an
operation's own duration is its time.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from moescope.align.context import contexts, enclosing
from moescope.align.ranges import IntArray, outermost_by_thread
from moescope.align.steps import assign_steps
from moescope.attribution.gemm.experts import with_experts
from moescope.attribution.gemm.recompute import recomputed
from moescope.attribution.gemm.shapes import is_matrix_op, matrix_op
from moescope.attribution.gemm.tiles import tile_of

SCHEMA = {
    "step": pl.Int64, "layer": pl.Int32, "microbatch": pl.Int32, "phase": pl.String, "backward": pl.Boolean,
    "op": pl.String, "kind": pl.String, "m": pl.Int64, "n": pl.Int64, "k": pl.Int64, "groups": pl.Int64,
    "divided": pl.String, "rows": pl.Float64, "dtype": pl.String, "flops": pl.Int64, "bytes": pl.Int64,
    "start_ns": pl.Int64, "kernel_ns": pl.Int64, "gap_ns": pl.Int64, "num_kernels": pl.Int64,
    "tile_m": pl.Int32, "tile_n": pl.Int32, "is_expert": pl.Boolean, "is_recompute": pl.Boolean,
}  # fmt: skip
"""``kernel_ns``: summed durations of its kernels (of the operation itself on a host-only trace), 0 where none is
recorded. ``gap_ns``: device idle between its kernels, and since the expert product before it in the same layer,
microbatch and direction. ``start_ns``: of its first kernel, local clock. ``rows``: see ``shapes.MatrixOp``."""

MAX_LAUNCH_GAP_NS = 100_000
"""A longer idle stretch before an expert's product is a stall (the allocator, a copy to the host), not a launch."""


def gemm_calls(events: pl.DataFrame, launch: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """The columns of SCHEMA, one row per matrix operation inside a step, in time order.

    ``events``: a rank's events; ``launch``: ``context.launches(events)``; ``windows``: ``steps.step_windows``.
    """
    ops = _operations(events)
    if ops.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    on_gpu = bool(events["category"].is_in(["kernel"]).any())
    ops = _with_kernels(ops, events, launch) if on_gpu else _of_host(ops)
    moment, thread = ops["op_ns"].to_numpy(), ops["tid"].to_numpy()
    where = contexts(events, moment, thread)
    ops = pl.concat([ops, where], how="horizontal").with_columns(
        is_recompute=pl.Series(recomputed(events, moment, thread)),
        start_ns=pl.coalesce("first_ns", "op_ns"),
    )
    ops = ops.with_columns(step=assign_steps(ops["start_ns"], windows)).drop_nulls("step").sort("start_ns")
    return _with_gaps(with_experts(ops), events if on_gpu else None).select(
        pl.col(name).cast(kind) for name, kind in SCHEMA.items()
    )


def _operations(events: pl.DataFrame) -> pl.DataFrame:
    """``tid, op_ns, dur_ns, op`` and the shape's columns of every outermost matrix operation."""
    names = [name for name in events["name"].cast(pl.String).unique() if is_matrix_op(name)]
    called = events.filter((pl.col("category") == "cpu_op") & pl.col("input_dims").is_not_null())
    called = called.filter(pl.col("name").cast(pl.String).is_in(names)).select(
        "tid",
        "dur_ns",
        "input_dims",
        "input_types",
        "concrete_inputs",
        op=pl.col("name").cast(pl.String),
        op_ns="start_ns",
    )
    key = ["op", "input_dims", "input_types", "concrete_inputs"]
    distinct = called.select(key).unique()
    rows = [(*row, found) for row in distinct.rows() if (found := matrix_op(*row)) is not None]
    if not rows:
        return pl.DataFrame(schema={"op": pl.String})
    shape = ("kind", "m", "n", "k", "groups", "divided", "rows", "flops", "bytes", "dtype")
    table = pl.DataFrame(
        [(*row[:4], *(getattr(row[4], name) for name in shape)) for row in rows],
        schema={name: SCHEMA.get(name, pl.String) for name in (*key, *shape)},
        orient="row",
    )
    known = called.join(table, on=key, how="inner", nulls_equal=True, maintain_order="left").drop(key[1:])
    start, tid = known["op_ns"].to_numpy(), known["tid"].to_numpy()
    return known.filter(pl.Series(outermost_by_thread(start, start + known["dur_ns"].to_numpy(), tid)))


def _of_host(ops: pl.DataFrame) -> pl.DataFrame:
    return ops.with_columns(
        kernel_ns="dur_ns", num_kernels=pl.lit(0), first_ns="op_ns", last_ns=pl.col("op_ns") + pl.col("dur_ns"),
        tile_m=pl.lit(1), tile_n=pl.lit(1),
    )  # fmt: skip


def _with_kernels(ops: pl.DataFrame, events: pl.DataFrame, launch: pl.DataFrame) -> pl.DataFrame:
    table = pl.concat(
        [events.select("category", "kind", "name", "start_ns", "dur_ns", "external_id"), launch], how="horizontal"
    )
    kernels = table.filter((pl.col("category") == "kernel") & (pl.col("kind") == "compute"))
    kernels = kernels.with_columns(owner=pl.Series(_owners(ops, kernels, events))).filter(pl.col("owner") >= 0)
    extent = kernels.group_by("owner").agg(
        num_kernels=pl.len(), kernel_ns=pl.col("dur_ns").sum(), first_ns=pl.col("start_ns").min(),
        last_ns=(pl.col("start_ns") + pl.col("dur_ns")).max(),
        kernel=pl.col("name").cast(pl.String).sort_by("dur_ns").last(),
    )  # fmt: skip
    tiles = {name: tile_of(name) for name in extent["kernel"].unique()}
    extent = extent.with_columns(
        tile_m=pl.col("kernel").replace_strict({name: tile[0] for name, tile in tiles.items()}, return_dtype=pl.Int32),
        tile_n=pl.col("kernel").replace_strict({name: tile[1] for name, tile in tiles.items()}, return_dtype=pl.Int32),
    )
    joined = ops.with_columns(owner=pl.int_range(pl.len(), dtype=pl.Int64)).join(
        extent, on="owner", how="left", maintain_order="left"
    )
    return joined.with_columns(pl.col("num_kernels", "kernel_ns").fill_null(0), pl.col("tile_m", "tile_n").fill_null(1))


def _owners(ops: pl.DataFrame, kernels: pl.DataFrame, events: pl.DataFrame) -> IntArray:
    """Row of ``ops`` that launched each kernel, -1 for none."""
    ranges = ops.select("tid", "dur_ns", start_ns="op_ns")
    caller = (
        events.lazy()
        .filter((pl.col("category") == "cpu_op") & pl.col("external_id").is_not_null())
        .select("external_id", called_ns="start_ns", called_tid="tid")
        .unique("external_id", keep="first")
        .collect()
    )
    linked = kernels.select("external_id", "launch_ns", "launch_tid").join(
        caller, on="external_id", how="left", maintain_order="left"
    )
    moment = linked.select(pl.coalesce("launch_ns", "called_ns").fill_null(-1)).to_series().to_numpy()
    thread = linked.select(pl.coalesce("launch_tid", "called_tid").fill_null(-1)).to_series().to_numpy()
    return enclosing(ranges, moment, thread)


def _with_gaps(ops: pl.DataFrame, events: pl.DataFrame | None) -> pl.DataFrame:
    """``gap_ns``: idle between an operation's kernels, and before it since the expert product ahead of it."""
    if events is None:
        return ops.with_columns(gap_ns=pl.lit(0))
    device = events.filter(pl.col("category").is_in(["kernel", "copy", "memset"])).sort("start_ns")
    start = device["start_ns"].to_numpy()
    busy_until = np.maximum.accumulate(start + device["dur_ns"].to_numpy())
    before = np.searchsorted(start, ops["start_ns"].to_numpy(), side="left") - 1
    idle = ops["start_ns"].to_numpy() - busy_until[np.maximum(before, 0)]
    place = ["step", "layer", "microbatch", "phase", "backward"]
    same = pl.all_horizontal(pl.col(name).eq_missing(pl.col(name).shift(1)) for name in [*place, "is_expert"])
    follows = same & pl.col("is_expert") & (pl.col("num_kernels") > 0) & pl.col("phase").is_not_null()
    within = (pl.col("last_ns") - pl.col("first_ns") - pl.col("kernel_ns")).clip(0).fill_null(0)
    launch_gap = np.where((before >= 0) & (idle > 0) & (idle <= MAX_LAUNCH_GAP_NS), idle, 0)
    ahead = pl.when(follows.fill_null(False)).then(pl.Series(launch_gap)).otherwise(0)
    return ops.with_columns(gap_ns=within + ahead)
