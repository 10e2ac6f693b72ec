"""Which member of the expert group holds which expert."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from moescope.errors import InputUnreadableError
from moescope.trainer.config import Config
from moescope.trainer.settings.rules import require


def contiguous_placement(num_experts: int, ep_size: int) -> list[int]:
    """Experts 0, 1, ... on member 0, the next on member 1, and so on."""
    return [expert * ep_size // num_experts for expert in range(num_experts)]


def placement_of(config: Config, ep_size: int) -> list[int]:
    """The member that holds each expert, [num_experts]; every member holds as many."""
    num_experts, file = config.moe.num_experts, config.parallel.placement_file
    if not file:
        return contiguous_placement(num_experts, ep_size)
    placement = _read(Path(file))
    held = Counter(placement)
    fits = len(placement) == num_experts and all(held[m] == num_experts // ep_size for m in range(ep_size))
    rule = f"must place {num_experts} experts, {num_experts // ep_size} on each of the members 0 to {ep_size - 1}"
    require(fits, "parallel.placement_file", file, rule)
    return placement


def _read(path: Path) -> list[int]:
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputUnreadableError(f"cannot read the placement {path}: {error}") from error
    if isinstance(content, dict):
        content = content.get("parallel", content).get("expert_placement")
    if not isinstance(content, list) or not all(type(member) is int for member in content):
        raise InputUnreadableError(
            f"{path} holds no placement", hint="a JSON list with the member of each expert, such as [0, 1, 0, 1]"
        )
    return content
