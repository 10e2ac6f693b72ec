"""Names of the ranges that hooks record, and how to read them back.

``moescope::L{layer}.mb{microbatch}.{phase}`` in the forward pass, with ``.bwd`` in the backward pass and
``.recompute`` where the backward pass runs a forward region again. Fields that do not apply are absent:
``moescope::mb0.head``, ``moescope::optimizer``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PREFIX = "moescope::"

PHASES = (
    "attention",
    "router",
    "counts",
    "permute",
    "dispatch",
    "experts",
    "combine",
    "unpermute",
    "shared",
    "dense",
    "head",
    "grad_reduce",
    "optimizer",
)

_PATTERN = re.compile(r"moescope::(?:L(\d+)\.)?(?:mb(\d+)\.)?([a-z_]+)(\.bwd|\.recompute)?")


@dataclass(frozen=True, slots=True)
class RangeName:
    """The fields of one range's name."""

    phase: str
    layer: int | None = None
    microbatch: int | None = None
    backward: bool = False
    recompute: bool = False


def range_name(name: RangeName) -> str:
    """The text under which a range is recorded."""
    fields = []
    if name.layer is not None:
        fields.append(f"L{name.layer}")
    if name.microbatch is not None:
        fields.append(f"mb{name.microbatch}")
    fields.append(name.phase)
    if name.backward or name.recompute:
        fields.append("bwd" if name.backward else "recompute")
    return PREFIX + ".".join(fields)


def parse_range_name(text: str) -> RangeName | None:
    """The fields of a recorded name, or None when it is not one of ours."""
    match = _PATTERN.fullmatch(text)
    if match is None or match[3] not in PHASES:
        return None
    layer, microbatch, phase, suffix = match.groups()
    return RangeName(
        phase,
        None if layer is None else int(layer),
        None if microbatch is None else int(microbatch),
        suffix == ".bwd",
        suffix == ".recompute",
    )
