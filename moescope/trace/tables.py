"""Raw columns -> the tables of the contract: base time, categories, kinds, order."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from moescope.trace.model import (
    COMM_SCHEMA,
    DEVICE_CATEGORIES,
    EVENT_SCHEMA,
    MEMORY_SCHEMA,
    CategoryType,
    KindType,
)
from moescope.trace.patterns import Patterns
from moescope.trace.rows import Raw


@dataclass(frozen=True, slots=True)
class Tables:
    """The finished tables of one file, times absolute."""

    events: pl.DataFrame
    comm: pl.DataFrame
    memory: pl.DataFrame


def finish(raw: Raw, base_ns: int, patterns: Patterns) -> Tables:
    """The contract's tables from the raw ones of a file whose times count from ``base_ns``."""
    events = _with_kinds(_with_categories(raw.events, patterns), patterns)
    on_device = pl.col("category").is_in(DEVICE_CATEGORIES)
    events = events.with_columns(
        start_ns=pl.col("ts_ns") + base_ns,
        device=pl.when(on_device).then(pl.coalesce("device", "pid")).cast(pl.Int32, strict=False),
        stream=pl.when(on_device).then(pl.coalesce("stream", "tid")).otherwise(pl.col("stream")),
        bytes=pl.when(on_device).then("bytes"),
    )
    events = events.sort("start_ns", "index").select(list(EVENT_SCHEMA)).cast(EVENT_SCHEMA)  # type: ignore[arg-type]
    memory = raw.memory.with_columns(pl.col("ts_ns") + base_ns).sort("ts_ns", maintain_order=True)
    return Tables(events, raw.comm.select(list(COMM_SCHEMA)), memory.select(list(MEMORY_SCHEMA)))


def _with_categories(events: pl.DataFrame, patterns: Patterns) -> pl.DataFrame:
    recorded = events["recorded"].unique().drop_nulls().to_list()
    mapped = [patterns.category(text) for text in recorded]
    return events.with_columns(
        category=pl.col("recorded").replace_strict(recorded, mapped, default="other", return_dtype=CategoryType)
        if recorded
        else pl.lit("other", CategoryType)
    )


def _with_kinds(events: pl.DataFrame, patterns: Patterns) -> pl.DataFrame:
    kernels = events.filter(category="kernel")["name"].unique().to_list()
    ranges = events.filter(pl.col("category").is_in(["annotation", "cpu_op"]))["name"].unique().to_list()
    backend = [name for name in ranges if patterns.range_kind(name)]
    of_kernel = pl.DataFrame(
        {"name": kernels, "kernel_kind": [patterns.kernel_kind(name) for name in kernels]},
        {"name": pl.String, "kernel_kind": KindType},
    )
    is_kernel = pl.col("category") == "kernel"
    copies = pl.col("category").is_in(["copy", "memset"])
    ranged = pl.col("category").is_in(["annotation", "cpu_op"]) & pl.col("name").is_in(backend)
    return events.join(of_kernel, on="name", how="left", maintain_order="left").with_columns(
        kind=pl.when(is_kernel)
        .then("kernel_kind")
        .when(copies)
        .then(pl.lit("copy", KindType))
        .when(ranged)
        .then(pl.lit("communication", KindType))
    )


def early_kernels(events: pl.DataFrame) -> tuple[int, int | None]:
    """How many device events start before the call that launched them, and the first one's index."""
    calls = events.filter(pl.col("category") == "runtime", pl.col("correlation").is_not_null())
    launched = (
        events.filter(pl.col("category").is_in(DEVICE_CATEGORIES), pl.col("correlation") > 0)
        .select("index", "start_ns", "correlation")
        .join(calls.group_by("correlation").agg(pl.col("start_ns").min().alias("launch_ns")), on="correlation")
        .filter(pl.col("start_ns") < pl.col("launch_ns"))
    )
    first = launched["index"].min()
    return launched.height, first if isinstance(first, int) else None
