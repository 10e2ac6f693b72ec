"""Kinds of communication and what they imply, and its element sizes and shapes, in one vocabulary."""

from __future__ import annotations

import json
import re
from math import prod
from typing import Any

PART_OF_KIND = {
    "all_to_all": "all_to_all",
    "all_reduce": "reduction",
    "reduce_scatter": "reduction",
    "reduce": "reduction",
}
"""The ``comm.*`` part that a kind belongs to; ``other`` for the rest."""

SYNCHRONISING = frozenset({"all_to_all", "all_reduce", "all_gather", "reduce_scatter", "barrier"})
"""Kinds in which no rank can finish before every rank with data for it has begun."""

FROM_ROOT = frozenset({"broadcast", "scatter"})
"""Kinds in which a rank waits for the root alone, and the root for nobody."""

TO_ROOT = frozenset({"reduce", "gather"})
"""Kinds in which the root waits for all, and the others for nobody."""

ROOT_ARGUMENT = {"broadcast": 2, "reduce": 3, "gather": 3, "scatter": 3}
"""Position of the root, as a number within the group, among the arguments of a ``c10d`` call of each kind."""

ITEM_BYTES = {
    "double": 8, "float64": 8, "long": 8, "longint": 8, "int64": 8, "complexfloat": 8,
    "float": 4, "float32": 4, "int": 4, "int32": 4,
    "half": 2, "float16": 2, "bfloat16": 2, "short": 2, "int16": 2,
    "char": 1, "byte": 1, "int8": 1, "uint8": 1, "bool": 1, "unsignedchar": 1, "signedchar": 1,
    "float8e4m3fn": 1, "float8e5m2": 1, "float8e4m3fnuz": 1, "float8e5m2fnuz": 1,
}  # fmt: skip


def item_bytes(dtype: str | None) -> int | None:
    """Bytes of one element of a recorded type such as ``c10::BFloat16`` or ``long int``; None if unknown."""
    if dtype is None:
        return None
    return ITEM_BYTES.get(re.sub("[^a-z0-9]", "", dtype.lower().rsplit("::", 1)[-1]))


MOST_ELEMENTS = 1 << 46
"""Of one message, above what any device holds: a count above is none."""
MOST_ROWS = 1 << 40
"""Sent to one peer."""
MOST_DIGITS = 7
"""Of a member's number in its group."""


def first_tensor_elements(dims: str | None, position: int = 0) -> int | None:
    """Number of elements of the tensor at ``position`` in a recorded ``Input Dims``; None where it holds none.

    A tensor list counts as the sum of its members.
    """
    shapes = _parse_list(dims)
    shape = shapes[position] if len(shapes) > position else None
    if not isinstance(shape, list) or not shape:
        return None
    members = shape if isinstance(shape[0], list) else [shape]
    if not all(map(_is_shape, members)):
        return None
    total = sum(prod(member) for member in members)
    return total if total <= MOST_ELEMENTS else None


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(size, int) and size >= 0 for size in value)


def first_dtype(types: str | None, position: int = 0) -> str | None:
    """The recorded type of the argument at ``position`` of ``Input type``."""
    names = _parse_list(types)
    return names[position] if len(names) > position and isinstance(names[position], str) else None


def concrete_splits(concrete: str | None, dims: str | None) -> tuple[list[int], list[int]] | None:
    """(input splits, output splits) in rows from a ``c10d::alltoall_base_`` call's concrete inputs.

    The call records its output splits before its input splits; empty lists mean equal splits. None where
    the call recorded neither.
    """
    values = _parse_list(concrete)
    lists = [_parse_list(value) for value in values if isinstance(value, str) and value.startswith("[")]
    lists = [entry for entry in lists if all(isinstance(item, int) and 0 <= item <= MOST_ROWS for item in entry)]
    if len(lists) != 2 or not lists[0] or dims is None:
        return None
    return lists[1], lists[0]


def concrete_root(kind: str, concrete: str | None) -> int | None:
    """The root, as a number within the group, from a ``c10d`` call's concrete inputs; None where there is none."""
    position = ROOT_ARGUMENT.get(kind)
    values = _parse_list(concrete)
    if position is None or position >= len(values):
        return None
    text = str(values[position])
    return int(text) if text.isdecimal() and len(text) < MOST_DIGITS else None


def _parse_list(text: object) -> list[Any]:
    if not isinstance(text, str):
        return []
    try:
        value = json.loads(text)
    except ValueError:
        return []
    return value if isinstance(value, list) else []
