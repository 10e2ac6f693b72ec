"""Matrix operations as ``moescope.attribution.gemm.calls`` gives them, one row at a time."""

from __future__ import annotations

from typing import Any

import polars as pl

from moescope.attribution.gemm.calls import SCHEMA


def call(**given: Any) -> dict[str, Any]:
    """A product of [m, k] and [k, n]; the FLOPs follow from the shape."""
    row: dict[str, Any] = {
        "step": 0, "layer": 0, "microbatch": 0, "phase": "experts", "backward": False, "op": "aten::mm", "kind": "gemm",
        "m": 64, "n": 256, "k": 512, "groups": 1, "divided": "", "dtype": "bfloat16", "bytes": 0, "start_ns": 0,
        "kernel_ns": 50_000, "gap_ns": 0, "num_kernels": 1, "tile_m": 128, "tile_n": 128, "is_expert": True,
        "is_recompute": False,
    }  # fmt: skip
    row |= given
    row.setdefault("rows", float(row["m"]))
    row.setdefault("flops", 2 * row["m"] * row["n"] * row["k"] * (1 if row["divided"] else row["groups"]))
    return row


def table(*rows: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema=SCHEMA)
