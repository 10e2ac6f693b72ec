"""Sends and receives that one kernel does together (``batch_isend_irecv``), and whom they are exchanged with.

The kernel of such a batch records nothing but the range ``nccl:coalesced`` that it was launched in. The calls that make
up the batch were recorded on the same thread just before, each with its peer. Where all of them have one peer the
kernel is an exchange with that rank, in which both wait for each other; a batch with several peers matches nobody's.
"""

from __future__ import annotations

import polars as pl

SCHEMA = {"event": pl.UInt32, "peer": pl.Int64, "sends": pl.Boolean, "group_description": pl.String}


def batches(kernels: pl.DataFrame, events: pl.DataFrame, comm_args: pl.DataFrame) -> pl.DataFrame:
    """The columns of SCHEMA for those of ``kernels`` that batches of messages launched.

    ``kernels``: ``event, launch_ns, thread, collective, name``, a rank's communication kernels. ``peer`` is null where
    there are several, ``sends`` where there is both.
    """
    is_batch = pl.col("collective").str.contains("coalesced") & pl.col("name").str.contains("(?i)sendrecv")
    chosen = kernels.filter(is_batch.fill_null(False)).drop_nulls(["launch_ns", "thread"])
    if chosen.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    calls = comm_args.filter(pl.col("collective").is_in(["send", "recv"])).join(
        events.filter(pl.col("category") == "cpu_op").select("index", "start_ns", thread="tid"), on="index"
    )
    calls = calls.with_columns(peer=pl.coalesce("dst_rank", "src_rank"), is_send=pl.col("dst_rank").is_not_null())
    made = calls.sort("start_ns").join_asof(
        chosen.select("event", "thread", "launch_ns").sort("launch_ns"),
        left_on="start_ns",
        right_on="launch_ns",
        by="thread",
        strategy="forward",
        check_sortedness=False,
    )
    one, way = pl.col("peer").n_unique() == 1, pl.col("is_send").n_unique() == 1
    found = (
        made.drop_nulls("event")
        .group_by("event")
        .agg(
            peer=pl.when(one).then(pl.col("peer").first()),
            sends=pl.when(one & way).then(pl.col("is_send").first()),
            group_description=pl.col("group_description").first(),
        )
    )
    return (
        chosen.select("event")
        .join(found, on="event", how="left")
        .select([pl.col(name).cast(dtype) for name, dtype in SCHEMA.items()])
    )
