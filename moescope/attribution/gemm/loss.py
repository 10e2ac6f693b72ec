"""What a matrix product loses against the reference rate, and to what.

With F its FLOPs, R the reference and t its time (kernels and launch gaps), the loss is t - F/R. It is split in this
order, each part being what its limit adds to those before it:

* memory: the roofline, max(F/R, bytes / bandwidth);
* tile: tiles are computed whole, so F/R grows by 1 / (share of the tiles that is filled);
* wave: multiprocessors take tiles in whole waves, so it grows by 1 / (tiles / (waves * multiprocessors));
* launch: idle between its kernels, and between single experts' kernels;
* residual: the rest, negative where the kernel does better than these limits.

A limit that is not known (bandwidth, multiprocessors, tiles on a host) adds nothing. The parts sum to the loss exactly.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import polars as pl

from moescope.attribution.gemm.reference import PRODUCT_KINDS, Reference

FloatArray = npt.NDArray[np.float64]

LOSS_PARTS = ("memory", "tile", "wave", "launch", "residual")
"""In the order in which the loss is split; columns ``{part}_ns``."""


def with_loss(calls: pl.DataFrame, refs: Mapping[str, Reference], num_multiprocessors: int | None) -> pl.DataFrame:
    """The timed products of ``calls`` with ``time_ns``, ``loss_ns`` and the parts of the loss, all Int64.

    ``calls``: ``gemm.calls``; a column ``group_rows`` (list: rows of each group of a grouped product) is used where
    there is one, else rows count as even.
    """
    known = calls.filter(
        pl.col("kind").is_in(PRODUCT_KINDS) & (pl.col("kernel_ns") > 0) & pl.col("dtype").is_in(list(refs))
    )
    rate = _of(known, {dtype: ref.flops_per_ns for dtype, ref in refs.items()})
    memory_rate = _of(known, {dtype: ref.memory_bytes_per_ns or np.inf for dtype, ref in refs.items()})
    ideal = known["flops"].to_numpy() / rate
    memory = np.maximum(known["bytes"].to_numpy() / memory_rate, ideal)
    tiles, filled = tile_fill(known)
    padded = ideal / filled
    wave = padded / wave_fill(tiles, num_multiprocessors)
    parts = {
        "memory": memory - ideal,
        "tile": np.maximum(padded - memory, 0.0),
        "wave": np.maximum(wave - np.maximum(memory, padded), 0.0),
    }
    whole = known.with_columns(time_ns=pl.col("kernel_ns") + pl.col("gap_ns"), launch_ns="gap_ns").with_columns(
        loss_ns=pl.col("time_ns") - pl.Series(np.rint(ideal).astype(np.int64)),
        **{f"{part}_ns": pl.Series(np.rint(value).astype(np.int64)) for part, value in parts.items()},
    )
    spent = pl.sum_horizontal(f"{part}_ns" for part in LOSS_PARTS[:-1])
    return whole.with_columns(residual_ns=pl.col("loss_ns") - spent)


def _of(calls: pl.DataFrame, values: Mapping[str, float]) -> FloatArray:
    return calls["dtype"].replace_strict(dict(values), return_dtype=pl.Float64).to_numpy()


def tile_fill(calls: pl.DataFrame) -> tuple[FloatArray, FloatArray]:
    """(tiles, share of them that is filled) of every product, [n] each; (0, 1) where the tile is not known.

    Column-major libraries swap the sides of a tile, so the side that pads less is taken.
    """
    straight, swapped = (_num_tiles(calls, *sides) for sides in (("tile_m", "tile_n"), ("tile_n", "tile_m")))
    tiles = np.minimum(straight, swapped)
    is_one = pl.col("divided").is_in(["m", "n"])
    area = calls.select(pl.when(is_one).then(1).otherwise("groups") * pl.col("m") * pl.col("n")).to_series()
    tile_area = calls.select(pl.col("tile_m") * pl.col("tile_n")).to_series()
    known = (calls["tile_m"] > 1).to_numpy() & (tiles > 0)
    filled = area.to_numpy() / np.maximum(tiles * tile_area.to_numpy(), 1.0)
    return np.where(known, tiles, 0.0), np.where(known, np.minimum(filled, 1.0), 1.0)


def _num_tiles(calls: pl.DataFrame, side_m: str, side_n: str) -> FloatArray:
    down, across = (pl.col("m") / pl.col(side_m)).ceil(), (pl.col("n") / pl.col(side_n)).ceil()
    split = pl.col("groups") * (pl.col("rows") / pl.col(side_m)).ceil()
    if "group_rows" in calls.columns:
        split = pl.coalesce(_tiles_of_lists(calls, side_m), split)
    split_across = pl.col("groups") * (pl.col("rows") / pl.col(side_n)).ceil()
    tiles = (
        pl.when(pl.col("divided") == "m")
        .then(split * across)
        .when(pl.col("divided") == "n")
        .then(down * split_across)
        .otherwise(pl.col("groups") * down * across)
    )
    return calls.select(tiles.cast(pl.Float64)).to_series().to_numpy()


def _tiles_of_lists(calls: pl.DataFrame, side: str) -> pl.Series:
    """Tiles down the rows of every group, summed over the groups, null without a list; [n]."""
    long = calls.select("group_rows", side, call=pl.int_range(pl.len())).explode("group_rows")
    tiles = long.group_by("call", maintain_order=True).agg(
        pl.when(pl.col("group_rows").is_not_null().all()).then((pl.col("group_rows") / pl.col(side)).ceil().sum())
    )
    return tiles["group_rows"]


def wave_fill(tiles: FloatArray, num_multiprocessors: int | None) -> FloatArray:
    """Share of the multiprocessors' slots that the tiles fill, [n]; 1 where either number is not known."""
    if num_multiprocessors is None:
        return np.ones(len(tiles))
    waves = np.ceil(np.maximum(tiles, 1) / num_multiprocessors)
    filled: FloatArray = np.where(tiles > 0, tiles / (waves * num_multiprocessors), 1.0)
    return filled
