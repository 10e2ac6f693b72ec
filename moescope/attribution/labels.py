"""The labels of a step's exclusive parts, in priority order, and how names get them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from enum import IntEnum
from functools import lru_cache
from importlib.resources import files


class Label(IntEnum):
    """What a moment of a rank's step is spent on; where several are active the smallest value wins."""

    EXPERT_GEMM = 0
    ATTENTION = 1
    OTHER_GEMM = 2
    ROUTER = 3
    PERMUTE = 4
    OPTIMIZER = 5
    RECOMPUTE = 6
    ELEMENTWISE = 7
    OTHER = 8
    ALL_TO_ALL = 9
    REDUCTION = 10
    OTHER_COMM = 11
    COMM_WAIT = 12
    COPY = 13
    ALLOCATOR = 14
    HOST_LAUNCH = 15
    SYNC = 16
    DEPENDENCY = 17
    GAP = 18
    OUTSIDE = 19


COMPUTE = tuple(Label(value) for value in range(9))
COMMUNICATION = (Label.ALL_TO_ALL, Label.REDUCTION, Label.OTHER_COMM)
IDLE = (Label.HOST_LAUNCH, Label.SYNC, Label.DEPENDENCY, Label.GAP, Label.OUTSIDE)

PART = {
    **{label: f"compute.{label.name.lower()}" for label in COMPUTE},
    Label.COMM_WAIT: "comm.all_to_all.wait_removable",
    Label.COPY: "memory.copy",
    Label.ALLOCATOR: "memory.allocator",
    **{label: f"idle.{label.name.lower()}" for label in IDLE},
}
"""The part of a label; communication has three parts each, see COMM_PART."""

COMM_PART = {Label.ALL_TO_ALL: "comm.all_to_all", Label.REDUCTION: "comm.reduction", Label.OTHER_COMM: "comm.other"}
COMM_PIECES = ("wait_removable", "wait_overlapped", "transfer")

PARTS = (
    *(PART[label] for label in COMPUTE),
    *(f"{COMM_PART[label]}.{piece}" for label in COMMUNICATION for piece in COMM_PIECES),
    *(PART[label] for label in (Label.COPY, Label.ALLOCATOR, *IDLE)),
)
"""Every part's name, in the order in which tables and charts show them."""

COMM_LABEL_OF_PART = {"all_to_all": Label.ALL_TO_ALL, "reduction": Label.REDUCTION, "other": Label.OTHER_COMM}

GEMM_LABELS = frozenset({Label.EXPERT_GEMM, Label.OTHER_GEMM})

LABEL_OF_PHASE = {
    "attention": Label.ATTENTION,
    "router": Label.ROUTER,
    "permute": Label.PERMUTE,
    "unpermute": Label.PERMUTE,
    "dispatch": Label.PERMUTE,
    "combine": Label.PERMUTE,
    "counts": Label.ROUTER,
    "optimizer": Label.OPTIMIZER,
}
"""Phases whose compute is named after them whatever the kernel."""

TOKEN_BOUND_PHASES = frozenset({"experts", "permute", "unpermute", "dispatch", "combine"})
"""Phases whose work grows with the tokens a rank received."""


@lru_cache(maxsize=1)
def _patterns() -> tuple[tuple[Label, re.Pattern[str]], ...]:
    table = tomllib.loads(files("moescope.attribution").joinpath("classes.toml").read_text(encoding="utf-8"))
    return tuple(
        (Label[entry["name"].upper()], re.compile(entry["pattern"], re.IGNORECASE)) for entry in table["class"]
    )


def compute_label(name: str) -> Label:
    """The class of a compute kernel or operation by its name alone."""
    return next((label for label, pattern in _patterns() if pattern.search(name)), Label.OTHER)


def compute_labels(names: Iterable[str]) -> dict[str, int]:
    """``compute_label`` for each distinct name."""
    return {name: int(compute_label(name)) for name in set(names)}


def refine(label: int, operation: int | None, phase: str | None) -> int:
    """The final class of a compute event from its own name, the operation that launched it and its phase."""
    if phase == "experts":
        is_gemm = label in GEMM_LABELS or operation in GEMM_LABELS
        return Label.EXPERT_GEMM if is_gemm else label
    if phase in LABEL_OF_PHASE:
        return LABEL_OF_PHASE[phase]
    if operation in (Label.EXPERT_GEMM, Label.ATTENTION):
        return operation
    return label
