"""Packed rows of the hooks' files into the tables of ``moescope_hooks.schema``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from moescope_hooks.schema import COLLECTIVE, EXPERT_LOAD, PACKED_COLLECTIVE, PACKED_EXPERT_LOAD, list_chains
from numpy.typing import NDArray

from moescope.telemetry.packed import unpack

_MARKS = {"expert_load": (EXPERT_LOAD, PACKED_EXPERT_LOAD), "collective": (COLLECTIVE, PACKED_COLLECTIVE)}


def is_packed(frame: pl.DataFrame, table: str) -> bool:
    """Whether a part has the columns that only packed ones have."""
    if table not in _MARKS:
        return False
    plain, packed = _MARKS[table]
    return set(packed) - set(plain) <= set(frame.columns)


def unpack_part(frame: pl.DataFrame, table: str) -> pl.DataFrame:
    """The rows that a packed part stands for. Raises ValueError where it contradicts itself."""
    frames = [pl.DataFrame(schema=dict(_MARKS[table][0]))]
    if table == "expert_load":
        kinds = frame.with_columns(plain=pl.col("dropped").is_null()).partition_by("num_experts", "plain")
        frames += [_expert_load(kind) for kind in kinds]
    else:
        frames += [_collectives(row) for row in frame.partition_by("step", maintain_order=True)]
    return pl.concat(frames, how="vertical")


def _expert_load(frame: pl.DataFrame) -> pl.DataFrame:
    """Blocks of one number of experts, all with or all without drops."""
    width = int(frame["num_experts"][0])
    layers = frame["layer"].to_list()
    lists = {}
    for column in ("counts", "dropped"):
        contents = frame[column].to_list()
        if contents[0] is None:
            lists[column] = pl.lit(None, dtype=EXPERT_LOAD[column])
        else:
            blocks = [unpack(c, len(layer), width, layer) for c, layer in zip(contents, layers, strict=True)]
            lists[column] = pl.lit(_lists(np.concatenate(blocks)))
    scalars = ["microbatch", "layer", "entropy", "margin", "bf16_flips"]
    rows = frame.select("rank", "step", *scalars).explode(scalars, empty_as_null=False)
    return _ordered(rows.with_columns(**lists), EXPERT_LOAD)


def _lists(values: NDArray[np.int64]) -> pl.Series:
    """[n, width] as n lists."""
    return pl.Series(values, dtype=pl.Array(pl.Int64, values.shape[1])).cast(pl.List(pl.Int64))


def _collectives(frame: pl.DataFrame) -> pl.DataFrame:
    block = frame.row(0, named=True)
    n = len(block["phase"])
    arrival_ns = unpack(block["arrival_ns"], n, 1, [0] * n)[:, 0]
    distinct = _distinct_lists(block)
    columns: dict[str, Any] = {
        "microbatch": block["microbatch"],
        "layer": block["layer"],
        "phase": block["phase"],
        "backward": block["backward"],
        "group": block["group"],
        "seq": unpack(block["seq"], n, 1, block["group"])[:, 0],
        "send_bytes": distinct.gather(block["send"]),
        "recv_bytes": distinct.gather(block["recv"]),
        "arrival_ns": arrival_ns,
        "end_ns": arrival_ns + unpack(block["duration_ns"], n, 1)[:, 0],
    }
    rows = pl.DataFrame({"rank": [block["rank"]] * n, "step": [block["step"]] * n, **columns})
    return _ordered(rows, COLLECTIVE)


def _distinct_lists(block: Mapping[str, Any]) -> pl.Series:
    """The lists of sizes that the step's collectives refer to, in bytes."""
    names = zip(block["layer"], block["phase"], block["backward"], strict=True)
    chains = list_chains(block["send"], block["recv"], list(names))
    lengths: list[int] = block["list_lengths"]
    lists: list[Any] = [None] * len(lengths)
    for length, content in zip(sorted(set(lengths)), block["lists"], strict=True):
        chosen = [number for number, size in enumerate(lengths) if size == length]
        values = unpack(content, len(chosen), length, [chains[number] for number in chosen]) * block["unit_bytes"]
        for number, sizes in zip(chosen, values, strict=True):
            lists[number] = sizes
    return pl.Series(lists, dtype=pl.List(pl.Int64))


def _ordered(frame: pl.DataFrame, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    return frame.select(pl.col(column).cast(dtype) for column, dtype in schema.items())
