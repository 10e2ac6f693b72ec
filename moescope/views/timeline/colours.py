"""Which colour of the palette a slice gets: that of its part of the step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import polars as pl

from moescope.align.collectives import PART_OF_KIND
from moescope.attribution.labels import PART, Label, compute_labels
from moescope.views.palette import GROUPS, group_of

SLICE_GROUPS: tuple[str, ...] = (*(group.key for group in GROUPS), "annotation", "host", "python")
"""Colour keys; the last three are for ranges that stand for no part of a step."""
_INDEX = {key: index for index, key in enumerate(SLICE_GROUPS)}
_OF_CATEGORY = {
    "annotation": "annotation",
    "gpu_annotation": "annotation",
    "python": "python",
    "overhead": "idle-sync",
    "sync": "idle-sync",
    "runtime": "idle-other",
    "copy": "memory",
    "memset": "memory",
    "other": "idle-other",
}
_OF_KIND = {"copy": "memory", "wait": "a2a-wait"}


def slice_groups(events: pl.DataFrame, kind_of: Callable[[str], str]) -> npt.NDArray[np.uint8]:
    """Colour of each event, from its kind, category and name; [n]. ``kind_of``: what a collective of a name does.

    Host operations are grey where a device does the work, and coloured by what they compute where there is none.
    """
    on_host = {"cpu_op": "host"} if events["device"].is_not_null().any() else {}
    names = events["name"].unique().cast(pl.String).to_list()
    by_name = {name: _INDEX[_compute_group(label)] for name, label in compute_labels(names).items()}
    compute = events["name"].cast(pl.String).replace_strict(by_name, return_dtype=pl.UInt8)
    known, kind = _mapped(events["category"], {**_OF_CATEGORY, **on_host}), _mapped(events["kind"], _OF_KIND)
    exchange = {
        name: _INDEX[group_of(f"comm.{PART_OF_KIND.get(kind_of(name), 'other')}.transfer").key] for name in names
    }
    communication = pl.when(events["kind"] == "communication").then(
        events["name"].cast(pl.String).replace_strict(exchange, return_dtype=pl.UInt8)
    )
    frame = pl.DataFrame({"compute": compute, "known": known, "kind": kind})
    return frame.select(group=pl.coalesce(communication, "kind", "known", "compute"))["group"].to_numpy()


def _mapped(values: pl.Series, keys: Mapping[str, str]) -> pl.Series:
    numbers = {value: _INDEX[key] for value, key in keys.items()}
    return values.cast(pl.String).replace_strict(numbers, default=None, return_dtype=pl.UInt8)


def _compute_group(label: int) -> str:
    if label == Label.OTHER:
        return "other-compute"
    return group_of(PART[Label(label)]).key
