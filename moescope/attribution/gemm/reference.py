"""The rate that matrix products are held against, per element type, and where it comes from.

In this order: a baseline measured on the machine; the 95th percentile of the rates that large products of the same
type reach in the trace, at most the device's dense peak; the dense peak alone where the trace has too few large ones;
the best rate of the largest products where the device is unknown. FLOPs per nanosecond are GFLOP/s.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

import polars as pl

LARGE_ROWS = 1024
"""Rows per group from which a product counts as large."""
LARGE_SIDE = 512
"""Least length of the other two dimensions of a large product."""
MIN_LARGE_CALLS = 8
QUANTILE = 0.95
LARGEST_SHARE = 0.25
"""Share of the FLOPs, from the largest products down, that stand for large ones where none is."""

PRODUCT_KINDS = ("gemm", "batched", "grouped")
"""Kinds that are held against the reference; attention and convolutions have rates of their own."""


@dataclass(frozen=True, slots=True)
class Peak:
    """Data-sheet figures of a device; ``flops_per_ns`` by element type."""

    flops_per_ns: Mapping[str, float]
    memory_bytes_per_ns: float | None
    source: str


@dataclass(frozen=True, slots=True)
class Reference:
    """``source``: ``baseline``, ``large products in the trace``, ``device peak`` or ``best rate in the trace``."""

    dtype: str
    flops_per_ns: float
    source: str
    num_calls: int
    """Products behind the rate, 0 where it comes from elsewhere."""
    peak_flops_per_ns: float | None
    memory_bytes_per_ns: float | None


@lru_cache(maxsize=1)
def _devices() -> tuple[tuple[re.Pattern[str], Peak], ...]:
    table = tomllib.loads(files("moescope.attribution.gemm").joinpath("peaks.toml").read_text(encoding="utf-8"))
    return tuple(
        (
            re.compile(entry["pattern"], re.IGNORECASE),
            Peak(
                {dtype: tflops * 1e3 for dtype, tflops in entry["tflops"].items()},
                entry.get("memory_gb_per_s"),
                entry["source"],
            ),
        )
        for entry in table["device"]
    )


def peak_of(device: str) -> Peak | None:
    """The data-sheet figures of a device by its name, None where it is not listed."""
    return next((peak for pattern, peak in _devices() if pattern.search(device)), None)


def references(
    calls: pl.DataFrame,
    device: str,
    measured: Mapping[str, float] | None = None,
    memory_bytes_per_ns: float | None = None,
) -> dict[str, Reference]:
    """The reference of every element type that ``calls`` holds products of.

    ``calls``: ``gemm.calls`` of ranks with the same ``device``. ``measured``: a baseline's best FLOPs per nanosecond by
    type, ``memory_bytes_per_ns`` its memory bandwidth.
    """
    peak = peak_of(device)
    memory = memory_bytes_per_ns or (peak.memory_bytes_per_ns if peak is not None else None)
    timed = calls.filter(pl.col("kind").is_in(PRODUCT_KINDS) & (pl.col("kernel_ns") > 0) & (pl.col("flops") > 0))
    timed = timed.with_columns(rate=pl.col("flops") / pl.col("kernel_ns"))
    found = {}
    for (dtype,), part in timed.group_by(["dtype"], maintain_order=True):
        name = str(dtype)
        top = peak.flops_per_ns.get(name) if peak is not None else None
        rate, source, count = _rate(part, (measured or {}).get(name), top)
        found[name] = Reference(name, rate, source, count, top, memory)
    return found


def _rate(calls: pl.DataFrame, measured: float | None, peak: float | None) -> tuple[float, str, int]:
    if measured is not None:
        return measured, "baseline", 0
    large = calls.filter(
        (pl.col("rows") >= LARGE_ROWS) & (pl.min_horizontal("n", "k") >= LARGE_SIDE) & (pl.col("m") >= LARGE_SIDE)
    )
    if len(large) >= MIN_LARGE_CALLS:
        rate = float(large["rate"].quantile(QUANTILE, interpolation="linear") or 0.0)
        return (min(rate, peak) if peak is not None else rate), "large products in the trace", len(large)
    if peak is not None:
        return peak, "device peak", 0
    by_size = calls.sort("flops", descending=True)
    largest = by_size.filter((pl.col("flops").cum_sum() - pl.col("flops")) <= LARGEST_SHARE * pl.col("flops").sum())
    return float(largest["rate"].max() or 0.0), "best rate in the trace", len(largest)  # type: ignore[arg-type]
