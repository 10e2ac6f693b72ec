"""The analysis as one JSON object: the format ``moescope.analysis/1`` that scripts rely on.

Keys may be added, never renamed. Base units stand in the key names; values that are not finite become ``null``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING

from moescope.views.model import SCHEMA, Analysis, Json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from moescope.views.compare import Comparison
    from moescope.views.compare.baseline import BaselineComparison
    from moescope.views.inventory import Inventory
    from moescope.views.questions import Question

INVENTORY_SCHEMA = "moescope.inventory/1"
COMPARISON_SCHEMA = "moescope.comparison/1"
BASELINE_COMPARISON_SCHEMA = "moescope.baseline-comparison/1"
SECTIONS = (
    "steps",
    "ranks",
    "clock",
    "waits",
    "wait_edges",
    "causes",
    "critical_path",
    "findings",
    "missing",
    "sources",
)
"""What every object holds."""
EXTRA_SECTIONS = ("collectives", "load", "gemms", "memory", "host", "library", "telemetry")
"""What is printed when asked for, because it grows with the number of events."""
BESIDE = {"memory": ("memory_use",), "load": ("routers", "traffic")}
"""Sections that are printed with another."""


def to_json(analysis: Analysis, with_: Collection[str] = ()) -> dict[str, Json]:
    """Return ``analysis`` as one JSON object with the sections that every reader needs and those in ``with_``."""
    unknown = set(with_) - set(EXTRA_SECTIONS)
    if unknown:
        raise ValueError(f"unknown sections {sorted(unknown)}; there are {', '.join(EXTRA_SECTIONS)}")
    head: dict[str, Json] = {
        "schema": SCHEMA,
        "ok": True,
        "name": analysis.name,
        "path": analysis.path,
        "basis": analysis.basis,
        "controls": list(analysis.controls),
        "world_size": analysis.world_size,
    }
    names = [*SECTIONS, *(name for name in EXTRA_SECTIONS if name in with_)]
    names += [beside for name in with_ for beside in BESIDE.get(name, ())]
    return head | {name: plain(getattr(analysis, "gemm" if name == "gemms" else name)) for name in names}


def plain(value: object) -> Json:
    """Return dataclasses and mappings as objects, tuples as lists, and numbers that JSON cannot hold as ``None``."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_dataclass(value) and not isinstance(value, type):
        return as_object(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no place in JSON")


def as_object(value: DataclassInstance) -> dict[str, Json]:
    """Return the fields of a dataclass as one object."""
    return {field.name: plain(getattr(value, field.name)) for field in fields(value)}


def inventory_to_json(inventory: Inventory, asked: Iterable[Question]) -> dict[str, Json]:
    """Return what a folder holds, and which questions that answers, as one JSON object."""
    head: dict[str, Json] = {"schema": INVENTORY_SCHEMA, "ok": True}
    return head | as_object(inventory) | {"questions": [as_object(question) for question in asked]}


def comparison_to_json(comparison: Comparison) -> dict[str, Json]:
    """Return what changed between two runs as one JSON object."""
    head: dict[str, Json] = {"schema": COMPARISON_SCHEMA, "ok": True}
    return head | as_object(comparison)


def baselines_to_json(comparison: BaselineComparison) -> dict[str, Json]:
    """Return what changed between two baselines as one JSON object."""
    head: dict[str, Json] = {"schema": BASELINE_COMPARISON_SCHEMA, "ok": True}
    return head | as_object(comparison)
