"""Collectives as the communication library timed them itself, summed up by kind and size."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True, slots=True)
class LibraryCollective:
    """Operations of one communicator, one kind and about one size, over everything that was recorded."""

    group: str
    """The communicator's name, else its hash."""
    kind: str
    group_size: int
    num_members: int
    """Members of the communicator whose files are there; with fewer than all, times are upper bounds."""
    num_hosts: int | None
    bytes_up_to: int
    """The size as a power of two, rounded up."""
    num: int
    shortest_ns: int
    """Median over operations of the shortest member's time: whoever came last, so nearly free of waiting."""
    longest_ns: int
    """The same of the longest member's: with its wait for the others."""
    algbw_gb_per_s: float | None
    """Median over operations of the best member's, as the library computed it."""
    busbw_gb_per_s: float | None
    timing: str
    """What the times were taken by: ``kernel_gpu``, or what is less exact."""


def library_collectives(rows: pl.DataFrame) -> tuple[LibraryCollective, ...]:
    """``rows``: see ``telemetry.inspector.LIBRARY_COLLECTIVE``. By total time of the longest members, most first."""
    if rows.is_empty():
        return ()
    alone = pl.col("kind").is_in(["send", "recv"])
    operations = rows.group_by(
        "communicator", "kind", "seq", member=pl.when(alone).then("member").otherwise(0), maintain_order=True
    ).agg(
        group=pl.coalesce("name", "communicator").first(),
        group_size=pl.col("group_size").first(),
        num_hosts=pl.col("num_hosts").first(),
        bytes_up_to=pl.col("bytes").max().clip(1).cast(pl.Float64).log(2).sub(1e-9).ceil(),
        shortest_ns=pl.col("duration_ns").min(),
        longest_ns=pl.col("duration_ns").max(),
        algbw=pl.col("algbw_gb_per_s").max(),
        busbw=pl.col("busbw_gb_per_s").max(),
        timing=pl.col("timing").first().fill_null("unknown"),
    )
    members = rows.group_by("communicator").agg(num_members=pl.col("member").n_unique())
    summed = (
        operations.join(members, on="communicator")
        .group_by("communicator", "kind", "bytes_up_to")
        .agg(
            pl.col("group", "group_size", "num_members", "num_hosts").first(),
            num=pl.len(),
            shortest_ns=pl.col("shortest_ns").median().round().cast(pl.Int64),
            longest_ns=pl.col("longest_ns").median().round().cast(pl.Int64),
            algbw_gb_per_s=pl.col("algbw").median(),
            busbw_gb_per_s=pl.col("busbw").median(),
            timing=pl.col("timing").unique().sort().str.join(", "),
            total_ns=pl.col("longest_ns").sum(),
        )
    )
    ordered = summed.sort("total_ns", "group", "kind", "bytes_up_to", descending=[True, False, False, False])
    ordered = ordered.with_columns(bytes_up_to=pl.lit(2).pow(pl.col("bytes_up_to")).cast(pl.Int64))
    names = list(LibraryCollective.__dataclass_fields__)
    return tuple(LibraryCollective(**row) for row in ordered.select(names).iter_rows(named=True))
