"""Which member of the expert group holds which expert, layer by layer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from moescope.errors import DataMissingError, InputUnreadableError
from moescope.telemetry import open_telemetry
from moescope.trainer.config import Config
from moescope.trainer.dense import moe_layers
from moescope.trainer.settings.rules import require

Placement = list[int]
"""The member that holds each expert, [num_experts]; every member holds as many."""


def contiguous_placement(num_experts: int, ep_size: int) -> Placement:
    """Experts 0, 1, ... on member 0, the next on member 1, and so on."""
    return [expert * ep_size // num_experts for expert in range(num_experts)]


def balanced_placement(loads: Sequence[float], ep_size: int) -> Placement:
    """Longest processing time first: the busiest expert goes to the member with the least load that has room.

    (Graham, Bounds on Multiprocessing Timing Anomalies, 1969, here with as many experts on every member.) The room
    is what makes the rule fail now and then; where contiguous is better, it is kept.
    """
    placement, room, held = [0] * len(loads), [len(loads) // ep_size] * ep_size, [0.0] * ep_size
    for expert in sorted(range(len(loads)), key=lambda e: (-loads[e], e)):
        member = min((m for m in range(ep_size) if room[m]), key=lambda m: (held[m], m))
        placement[expert] = member
        held[member] += loads[expert]
        room[member] -= 1
    plain = contiguous_placement(len(loads), ep_size)
    return min((placement, plain), key=lambda candidate: max(member_loads(loads, candidate, ep_size)))


def member_loads(loads: Sequence[float], placement: Placement, ep_size: int) -> list[float]:
    """What each member gets of the experts' ``loads``, [ep_size]."""
    held = [0.0] * ep_size
    for load, member in zip(loads, placement, strict=True):
        held[member] += load
    return held


def placements_of(config: Config, ep_size: int) -> dict[int, Placement]:
    """The placement of every layer that holds experts."""
    moe, parallel = config.moe, config.parallel
    layers = moe_layers(config)
    if parallel.placement_from:
        return _measured(Path(parallel.placement_from), layers, moe.num_experts, ep_size)
    if not parallel.placement_file:
        return dict.fromkeys(layers, contiguous_placement(moe.num_experts, ep_size))
    given = _read(Path(parallel.placement_file), layers)
    per_member = moe.num_experts // ep_size
    for placement in given.values():
        held = Counter(placement)
        fits = len(placement) == moe.num_experts and all(held[m] == per_member for m in range(ep_size))
        rule = f"must place {moe.num_experts} experts, {per_member} on each of the members 0 to {ep_size - 1}"
        require(fits, "parallel.placement_file", parallel.placement_file, rule)
    return given


def described(placements: Mapping[int, Placement]) -> Placement | dict[str, Placement]:
    """As run.json has it: one list where all layers agree, else one by layer number."""
    distinct = list(placements.values())
    if all(placement == distinct[0] for placement in distinct[1:]):
        return distinct[0] if distinct else []
    return {str(layer): placement for layer, placement in placements.items()}


def _measured(run: Path, layers: Sequence[int], num_experts: int, ep_size: int) -> dict[int, Placement]:
    telemetry = open_telemetry(run)
    if telemetry is None or telemetry.expert_load.is_empty():
        raise DataMissingError(
            f"{run} holds no expert counts to place experts by", hint="give the run directory of an observed run"
        )
    sums = telemetry.expert_load.group_by("layer").agg(
        loads=pl.concat_list(pl.col("counts").list.get(e, null_on_oob=True).sum() for e in range(num_experts)),
        widest=pl.col("counts").list.len().max(),
    )
    by_layer = {layer: (loads, widest) for layer, loads, widest in sums.select("layer", "loads", "widest").rows()}
    absent = [layer for layer in layers if by_layer.get(layer, (None, None))[1] != num_experts]
    if absent:
        raise DataMissingError(
            f"{run} has no counts of {num_experts} experts in layer {absent[0]}",
            hint="measure with the same layers and experts",
        )
    return {layer: balanced_placement(by_layer[layer][0], ep_size) for layer in layers}


def _read(path: Path, layers: Sequence[int]) -> dict[int, Placement]:
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputUnreadableError(f"cannot read the placement {path}: {error}") from error
    if isinstance(content, dict) and not all(str(key).isdecimal() for key in content):
        content = content.get("parallel", content).get("expert_placement")
    by_layer = content if isinstance(content, dict) else {str(layer): content for layer in layers}
    placements = {layer: by_layer.get(str(layer)) for layer in layers}
    if not all(isinstance(p, list) and all(type(member) is int for member in p) for p in placements.values()):
        raise InputUnreadableError(
            f"{path} holds no placement",
            hint="a JSON list with the member of each expert, such as [0, 1, 0, 1], or such a list by layer number",
        )
    return {layer: list(placement or ()) for layer, placement in placements.items()}
