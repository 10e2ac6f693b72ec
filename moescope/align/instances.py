"""Every collective one rank took part in, as one row each, from whatever its trace recorded.

Device traces: one row per communication kernel, its arguments from the kernel itself, else from the host
range (``record_param_comms``, ``nccl:*``, ``c10d::*``) that was open when it was launched. Host-only traces: one row
per backend range (``gloo:*``), begun when the calling thread issued the operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl

from moescope.align.coalesced import batches
from moescope.align.collectives import (
    concrete_root,
    concrete_splits,
    first_dtype,
    first_tensor_elements,
    item_bytes,
)
from moescope.align.context import contexts, enclosing
from moescope.align.ranges import IntArray
from moescope.align.steps import assign_steps
from moescope.trace import RankTrace

KindOf = Callable[[str], str]
"""What a collective or kernel of this name does, one of ``moescope.trace.model.COLLECTIVES``."""

SCHEMA: dict[str, Any] = {
    "event": pl.UInt32, "start_ns": pl.Int64, "end_ns": pl.Int64, "launch_ns": pl.Int64, "kind": pl.String,
    "stream": pl.Int64, "group_name": pl.String, "group_description": pl.String, "group_ranks": pl.List(pl.Int64),
    "group_size": pl.Int64, "seq": pl.Int64, "dtype": pl.String, "send_bytes": pl.Int64, "recv_bytes": pl.Int64,
    "in_splits": pl.List(pl.Int64), "out_splits": pl.List(pl.Int64), "root": pl.Int64,
    "peer": pl.Int64, "sends": pl.Boolean,
    "layer": pl.Int32, "microbatch": pl.Int32, "phase": pl.String, "backward": pl.Boolean,
}  # fmt: skip
"""One row per collective of one rank, local clock, in order of start. Splits are rows (tokens) per peer.
``root``: the group's number of the rank that a broadcast comes from or a reduction goes to, null where not recorded.
``peer``: the rank at the other side of a point-to-point message, and ``sends``: whether it goes there, null if both
ways; null for all else."""

ARGUMENTS = ("collective", "dtype", "in_nelems", "out_nelems", "group_size", "seq", "group_name",
             "group_description", "group_ranks", "in_splits", "out_splits", "src_rank", "dst_rank")  # fmt: skip


def comm_instances(
    events: pl.DataFrame, comm_args: pl.DataFrame, launch: pl.DataFrame, kind_of: KindOf
) -> pl.DataFrame:
    """The rank's collectives with the columns of SCHEMA.

    ``events``, ``comm_args``: as the reader gives them; ``launch``: ``context.launches(events)``; ``kind_of``: what a
    collective of a name does, as ``trace.patterns.collective_kind`` says.
    """
    table = pl.concat([events, launch], how="horizontal")
    device = table.filter((pl.col("kind") == "communication") & pl.col("category").is_in(["kernel", "copy"]))
    rows = _device_rows(device, events, comm_args, kind_of) if len(device) else _host_rows(events, kind_of)
    moment = rows["launch_ns"].fill_null(rows["start_ns"]).to_numpy()
    where = contexts(events, moment, rows["thread"].fill_null(-1).to_numpy())
    rows = pl.concat([rows, where], how="horizontal")
    return rows.select([pl.col(name).cast(dtype) for name, dtype in SCHEMA.items()]).sort("start_ns", "event")


def instances_of(trace: RankTrace, events: pl.DataFrame, launch: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """``comm_instances`` of a trace with ``rank``, ``window`` and the ``step`` each belongs to (``windows``: see
    ``steps.step_windows``)."""
    rows = comm_instances(events, trace.comm_args(), launch, trace.patterns.collective_kind)
    return rows.with_columns(
        step=assign_steps(rows["start_ns"], windows),
        rank=pl.lit(trace.rank, pl.Int64),
        window=pl.lit(trace.window, pl.Int64),
    )


def _device_rows(device: pl.DataFrame, events: pl.DataFrame, comm_args: pl.DataFrame, kind_of: KindOf) -> pl.DataFrame:
    moment = device["launch_ns"].fill_null(-1).to_numpy()
    thread = device["launch_tid"].fill_null(-1).to_numpy()
    own = device.select("index").join(comm_args, on="index", how="left", maintain_order="left").select(ARGUMENTS)
    host = _host_arguments(events, comm_args, moment, thread)
    called = _host_calls(events, moment, thread, kind_of)
    merged = pl.DataFrame([own[name].zip_with(own[name].is_not_null(), host[name]) for name in ARGUMENTS])
    recorded = merged["collective"].fill_null(called["collective"]).fill_null(device["name"].cast(pl.String))
    size = _mapped(merged["dtype"].fill_null(called["dtype"]), item_bytes, pl.Int64)
    peer = merged["dst_rank"].fill_null(merged["src_rank"])
    table = pl.DataFrame(
        {
            "event": device["index"],
            "start_ns": device["start_ns"],
            "end_ns": device["start_ns"] + device["dur_ns"],
            "launch_ns": device["launch_ns"],
            "thread": device["launch_tid"],
            "stream": device["stream"],
            "kind": _mapped(recorded, kind_of, pl.String),
            "send_bytes": merged["in_nelems"].fill_null(called["in_nelems"]) * size,
            "recv_bytes": merged["out_nelems"].fill_null(called["out_nelems"]) * size,
            **{name: merged[name] for name in ("group_name", "group_description", "group_ranks", "group_size", "seq")},
            "dtype": merged["dtype"].fill_null(called["dtype"]),
            "in_splits": merged["in_splits"].fill_null(called["in_splits"]),
            "out_splits": merged["out_splits"].fill_null(called["out_splits"]),
            "root": called["root"],
            "peer": peer,
            "sends": merged["dst_rank"].is_not_null().set(peer.is_null(), None),
        }
    )
    named = table.select("event", "launch_ns", "thread", collective=recorded, name=device["name"].cast(pl.String))
    return _with_batches(table, batches(named, events, comm_args))


def _with_batches(table: pl.DataFrame, found: pl.DataFrame) -> pl.DataFrame:
    """``table`` with the kernels of ``found`` as messages to their peers."""
    joined = table.join(
        found.with_columns(is_batch=True), on="event", how="left", maintain_order="left", suffix="_found"
    )
    of_batch = pl.col("is_batch").is_not_null()
    names = ("peer", "sends", "group_description")
    return joined.with_columns(
        kind=pl.when(of_batch).then(pl.lit("p2p")).otherwise("kind"),
        **{name: pl.when(of_batch).then(f"{name}_found").otherwise(name) for name in names},
    ).select(table.columns)


def _host_arguments(events: pl.DataFrame, comm_args: pl.DataFrame, moment: IntArray, thread: IntArray) -> pl.DataFrame:
    """Arguments of the host range with communication arguments that encloses each launch; nulls elsewhere."""
    ranges = (
        comm_args.lazy()
        .join(
            events.lazy().filter(pl.col("category") == "cpu_op").select("index", "tid", "start_ns", "dur_ns"),
            on="index",
        )
        .collect()
    )
    return _pick(ranges.select("tid", "start_ns", "dur_ns", *ARGUMENTS), moment, thread).select(ARGUMENTS)


def _host_calls(events: pl.DataFrame, moment: IntArray, thread: IntArray, kind_of: KindOf) -> pl.DataFrame:
    """Kind, type, sizes and splits from the backend range and the ``c10d`` call around each launch, [m]."""
    backend = _pick(_backend_ranges(events), moment, thread)
    calls = _pick(_c10d_calls(events, kind_of), moment, thread)
    return pl.DataFrame(
        {
            "collective": backend["collective"].fill_null(calls["collective"]),
            "dtype": calls["dtype"].fill_null(backend["dtype"]),
            "in_nelems": calls["in_nelems"].fill_null(backend["in_nelems"]),
            "out_nelems": calls["out_nelems"].fill_null(backend["in_nelems"]),
            "in_splits": calls["in_splits"],
            "out_splits": calls["out_splits"],
            "root": calls["root"],
        }
    )


def _backend_ranges(events: pl.DataFrame) -> pl.DataFrame:
    """``nccl:*``, ``gloo:*`` and other backend ranges with the input tensor's elements and type."""
    ranges = events.filter((pl.col("kind") == "communication") & pl.col("category").is_in(["annotation", "cpu_op"]))
    return ranges.select(
        "index", "tid", "start_ns", "dur_ns",
        collective=pl.col("name").cast(pl.String),
        dtype=_mapped(ranges["input_types"], first_dtype, pl.String),
        in_nelems=_mapped(ranges["input_dims"], first_tensor_elements, pl.Int64),
    )  # fmt: skip


def _c10d_calls(events: pl.DataFrame, kind_of: KindOf) -> pl.DataFrame:
    """``c10d::*`` calls with kind, elements sent and received, type and splits; all-to-all passes (output, input)."""
    calls = events.filter((pl.col("category") == "cpu_op") & pl.col("name").cast(pl.String).str.contains(r"^c10d::"))
    name = calls["name"].cast(pl.String)
    kind = _mapped(name, kind_of, pl.String)
    exchange = name.str.contains("alltoall_base")
    received = _mapped(calls["input_dims"], first_tensor_elements, pl.Int64)
    second = _mapped(calls["input_dims"], lambda dims: first_tensor_elements(dims, 1), pl.Int64)
    splits = [
        concrete_splits(concrete, dims) if is_exchange else None
        for concrete, dims, is_exchange in zip(calls["concrete_inputs"], calls["input_dims"], exchange, strict=True)
    ]
    dtype = _mapped(calls["input_types"], first_dtype, pl.String)
    is_untyped = dtype.is_in(["TensorList", ""]).fill_null(True)
    return pl.DataFrame(
        {
            "index": calls["index"],
            "tid": calls["tid"],
            "start_ns": calls["start_ns"],
            "dur_ns": calls["dur_ns"],
            "collective": name,
            "kind": kind,
            "dtype": dtype.set(is_untyped, None),
            "in_nelems": second.zip_with(exchange, received),
            "out_nelems": received,
            "in_splits": pl.Series([pair and pair[0] for pair in splits], dtype=pl.List(pl.Int64)),
            "out_splits": pl.Series([pair and pair[1] for pair in splits], dtype=pl.List(pl.Int64)),
            "root": pl.Series(
                [concrete_root(*call) for call in zip(kind, calls["concrete_inputs"], strict=True)], dtype=pl.Int64
            ),
        }
    )


def _host_rows(events: pl.DataFrame, kind_of: KindOf) -> pl.DataFrame:
    """Collectives of a host-only trace: backend ranges joined in order with the calls that issued them."""
    ranges, calls = _backend_ranges(events), _c10d_calls(events, kind_of)
    ranges = ranges.filter(~pl.col("collective").str.starts_with("c10d::")).sort("start_ns")
    ranges = ranges.with_columns(kind=_mapped(ranges["collective"], kind_of, pl.String))
    turn = pl.int_range(pl.len()).over("kind")
    ranges, calls = ranges.with_columns(turn=turn), calls.sort("start_ns").with_columns(turn=turn)
    joined = ranges.join(calls, on=["kind", "turn"], how="left", suffix="_call", maintain_order="left")
    issued = (pl.col("start_ns_call") <= pl.col("start_ns")) & (pl.col("in_nelems_call") == pl.col("in_nelems"))
    issued = (
        issued | (pl.col("in_nelems_call").is_null() & (pl.col("start_ns_call") <= pl.col("start_ns")))
    ).fill_null(False)
    size = _mapped(joined["dtype"], item_bytes, pl.Int64)
    joined = joined.with_columns(issued=issued, size=size)
    return joined.select(
        event="index",
        start_ns=pl.when("issued").then("start_ns_call").otherwise("start_ns"),
        end_ns=pl.col("start_ns") + pl.col("dur_ns"),
        launch_ns=pl.when("issued").then("start_ns_call"),
        thread=pl.when("issued").then("tid_call").otherwise("tid"),
        stream=pl.lit(None, pl.Int64),
        kind="kind",
        send_bytes=pl.col("in_nelems") * pl.col("size"),
        recv_bytes=pl.when("issued")
        .then(pl.col("out_nelems"))
        .otherwise(pl.col("in_nelems"))
        .fill_null(pl.col("in_nelems"))
        * pl.col("size"),
        group_name=pl.lit(None, pl.String),
        group_description=pl.lit(None, pl.String),
        group_ranks=pl.lit(None, pl.List(pl.Int64)),
        group_size=pl.when("issued").then(pl.col("in_splits").list.len()).cast(pl.Int64),
        seq=pl.lit(None, pl.Int64),
        dtype="dtype",
        in_splits=pl.when("issued").then("in_splits"),
        out_splits=pl.when("issued").then("out_splits"),
        root=pl.when("issued").then("root"),
        peer=pl.lit(None, pl.Int64),
        sends=pl.lit(None, pl.Boolean),
    )


def _pick(ranges: pl.DataFrame, moment: IntArray, thread: IntArray) -> pl.DataFrame:
    """The row of ``ranges`` innermost at each moment of its thread; a row of nulls where there is none."""
    slot = enclosing(ranges, moment, thread)
    return ranges.select(pl.all().gather(pl.Series(slot).replace(-1, None)))


def _mapped(values: pl.Series, function: Callable[[str], object], dtype: type[pl.DataType]) -> pl.Series:
    """``function`` over the distinct values; null stays null."""
    table = {value: function(value) for value in values.unique().drop_nulls().to_list()}
    return values.replace_strict(table, default=None, return_dtype=dtype)
