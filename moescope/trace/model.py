"""What the reader gives: schemas of its frames, and the small dataclasses around them."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

SCHEMA_VERSION = 9
"""Part of every key of the store; raised whenever the meaning or layout of a stored table changes."""

CATEGORIES = (
    "cpu_op",
    "annotation",
    "gpu_annotation",
    "kernel",
    "copy",
    "memset",
    "runtime",
    "python",
    "overhead",
    "sync",
    "other",
)
DEVICE_CATEGORIES = ("kernel", "copy", "memset")
KINDS = ("compute", "communication", "copy", "wait")
COLLECTIVES = (
    "all_to_all", "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "p2p",
    "barrier", "other",
)  # fmt: skip
"""What a collective does; ``p2p``: one sends and one receives."""

CategoryType = pl.Enum(CATEGORIES)
KindType = pl.Enum(KINDS)

EVENT_SCHEMA: dict[str, pl.DataType] = {
    "index": pl.UInt32(),
    "start_ns": pl.Int64(),
    "dur_ns": pl.Int64(),
    "category": CategoryType,
    "kind": KindType,
    "name": pl.Categorical(),
    "pid": pl.Int64(),
    "tid": pl.Int64(),
    "device": pl.Int32(),
    "stream": pl.Int64(),
    "correlation": pl.Int64(),
    "external_id": pl.Int64(),
    "bytes": pl.Int64(),
    "input_dims": pl.String(),
    "input_types": pl.String(),
    "concrete_inputs": pl.String(),
}

COMM_SCHEMA: dict[str, pl.DataType] = {
    "index": pl.UInt32(),
    "collective": pl.String(),
    "dtype": pl.String(),
    "in_nelems": pl.Int64(),
    "out_nelems": pl.Int64(),
    "group_size": pl.Int64(),
    "seq": pl.Int64(),
    "src_rank": pl.Int64(),
    "dst_rank": pl.Int64(),
    "group_name": pl.String(),
    "group_description": pl.String(),
    "group_ranks": pl.List(pl.Int64()),
    "in_splits": pl.List(pl.Int64()),
    "out_splits": pl.List(pl.Int64()),
    "lists_cut": pl.Boolean(),
}

MEMORY_SCHEMA: dict[str, pl.DataType] = {
    "ts_ns": pl.Int64(),
    "tid": pl.Int64(),
    "bytes": pl.Int64(),
    "addr": pl.UInt64(),
    "total_allocated": pl.Int64(),
    "total_reserved": pl.Int64(),
    "device_type": pl.Int64(),
    "device_id": pl.Int64(),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """Something of the input that could not be taken as it stands."""

    file: str
    """Path relative to the folder that was opened."""
    rank: int | None
    what: str
    effect: str
    """What the loss or the repair means for the answer."""
    count: int = 1
    """How many events, bytes or files are concerned; ``what`` says which."""
    where: str = ""
    """Byte offset in the uncompressed file or event index of the first occurrence."""
    code: str = "damaged"
    """Stable kebab-case name: ``truncated``, ``dropped-events``, ``duplicate-rank``, ..."""
    loses_data: bool = True
    """Whether something recorded is missing from the tables; False where it was repaired or merely looks odd."""

    def __str__(self) -> str:
        where = f" ({self.where})" if self.where else ""
        return f"{self.file}: {self.what}{where}: {self.effect}"


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A communicator as the trace describes it."""

    name: str
    description: str
    ranks: tuple[int, ...]
    """Global ranks; empty where the trace does not list them all."""
