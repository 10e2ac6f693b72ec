"""The colours of every picture: one set, the same in the report and the dashboard, told apart by colour-blind readers.

The hues are those of Okabe and Ito (Color Universal Design, 2008). A wait has the hue of the communication that waits
and is hatched, so it differs by texture too; idle time is grey.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PartGroup:
    """Parts of the step that are drawn as one segment."""

    key: str
    label: str
    light: str
    """Colour on a light page."""
    dark: str
    """Colour on a dark page."""
    hatched: bool
    parts: tuple[str, ...]
    """Names of :attr:`RankStep.parts_ns` that it sums."""


def _waits(kind: str) -> tuple[str, str]:
    return f"comm.{kind}.wait_removable", f"comm.{kind}.wait_overlapped"


GROUPS: tuple[PartGroup, ...] = (
    PartGroup("expert-gemm", "Expert GEMM", "#0072b2", "#3592cf", False, ("compute.expert_gemm",)),
    PartGroup("attention", "Attention", "#56b4e9", "#7cc8f2", False, ("compute.attention",)),
    PartGroup("routing", "Router, permute", "#009e73", "#1fb98d", False, ("compute.router", "compute.permute")),
    PartGroup("recompute", "Recompute", "#80cdb6", "#6fae9c", False, ("compute.recompute",)),
    PartGroup(
        "other-compute",
        "Other compute",
        "#a9cbe6",
        "#55799a",
        False,
        ("compute.other_gemm", "compute.elementwise", "compute.other"),
    ),
    PartGroup("optimizer", "Optimizer", "#5b6cc4", "#8593e0", False, ("compute.optimizer",)),
    PartGroup("a2a-transfer", "All-to-all transfer", "#d55e00", "#e8772a", False, ("comm.all_to_all.transfer",)),
    PartGroup("a2a-wait", "All-to-all wait", "#d55e00", "#e8772a", True, _waits("all_to_all")),
    PartGroup("reduce-transfer", "Reduction transfer", "#e69f00", "#e9ad2b", False, ("comm.reduction.transfer",)),
    PartGroup("reduce-wait", "Reduction wait", "#e69f00", "#e9ad2b", True, _waits("reduction")),
    PartGroup("comm-transfer", "Other transfer", "#b9a800", "#cdbf3a", False, ("comm.other.transfer",)),
    PartGroup("comm-wait", "Other wait", "#b9a800", "#cdbf3a", True, _waits("other")),
    PartGroup("memory", "Copies, allocator", "#cc79a7", "#d58cb5", False, ("memory.copy", "memory.allocator")),
    PartGroup("idle-host", "Idle: host launch", "#6d747d", "#99a1ab", False, ("idle.host_launch",)),
    PartGroup("idle-sync", "Idle: synchronising", "#979da5", "#727a84", False, ("idle.sync",)),
    PartGroup(
        "idle-other", "Idle: other", "#c6cad0", "#4d545d", False, ("idle.dependency", "idle.gap", "idle.outside")
    ),
)
"""In the order in which they are stacked."""

_GROUP_OF_PART = {part: group for group in GROUPS for part in group.parts}
_GROUP_OF_PREFIX = {"compute": "other-compute", "comm": "comm-transfer", "memory": "memory", "idle": "idle-other"}


def group_of(part: str) -> PartGroup:
    """The group that shows ``part``; a part of a later version goes to its family's remainder."""
    known = _GROUP_OF_PART.get(part)
    if known:
        return known
    key = _GROUP_OF_PREFIX.get(part.partition(".")[0], "idle-other")
    return next(group for group in GROUPS if group.key == key)


def grouped(parts_ns: Mapping[str, float]) -> dict[str, float]:
    """``parts_ns`` summed by group key, in drawing order; the sum stays the same."""
    sums = dict.fromkeys((group.key for group in GROUPS), 0.0)
    for part, value in parts_ns.items():
        sums[group_of(part).key] += value
    return sums


_GROUP_OF_PHASE = {
    "attention": "attention",
    "experts": "expert-gemm",
    "shared": "expert-gemm",
    "dense": "other-compute",
    "head": "recompute",
    "router": "routing",
    "permute": "routing",
    "unpermute": "routing",
    "counts": "comm-transfer",
    "dispatch": "a2a-transfer",
    "combine": "a2a-transfer",
    "grad_reduce": "reduce-transfer",
    "optimizer": "optimizer",
}
_REST = (
    "idle-sync",
    "memory",
    "idle-host",
    "comm-transfer",
    "recompute",
    "reduce-transfer",
    "other-compute",
    "optimizer",
)


def phase_groups(phases: Sequence[str]) -> list[str]:
    """A group key per phase to colour it by: that of the same work in the step, or one that no other phase has."""
    wanted = [_GROUP_OF_PHASE.get(phase) for phase in phases]
    rest = [key for key in _REST if key not in wanted]
    keys: list[str] = []
    for key in wanted:
        keys.append(key if key and key not in keys else rest.pop(0) if rest else "idle-other")
    return keys


LINES_LIGHT = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b6cc4", "#6d747d")
LINES_DARK = ("#3592cf", "#e8772a", "#1fb98d", "#d58cb5", "#e9ad2b", "#7cc8f2", "#8593e0", "#99a1ab")
"""For lines, in this order; from the ninth on the dash pattern changes."""


@dataclass(frozen=True, slots=True)
class Theme:
    """What a figure needs to sit on a light or a dark page."""

    name: str
    surface: str
    text: str
    muted: str
    grid: str
    lines: tuple[str, ...]
    cold: str
    """Far below the mean."""
    middle: str
    """At the mean, or zero."""
    hot: str
    """Far above the mean."""

    def group(self, group: PartGroup) -> str:
        """The group's colour here."""
        return group.dark if self.name == "dark" else group.light


LIGHT = Theme("light", "#ffffff", "#1c2127", "#5b6470", "#e3e6ea", LINES_LIGHT, "#0a5c91", "#f3f3f0", "#b84a00")
DARK = Theme("dark", "#171b21", "#e6e9ed", "#9aa4b0", "#2d343d", LINES_DARK, "#4aa8e0", "#262b32", "#f08a3c")
THEMES = {"light": LIGHT, "dark": DARK}


def mix(first: str, second: str, share: float) -> str:
    """The colour ``share`` of the way from ``first`` to ``second`` (both ``#rrggbb``)."""
    a, b = (tuple(int(c[i : i + 2], 16) for i in (1, 3, 5)) for c in (first, second))
    return "#" + "".join(f"{round(x + (y - x) * share):02x}" for x, y in zip(a, b, strict=True))


def diverging(theme: Theme) -> list[tuple[float, str]]:
    """Cold to hot through the middle, as (position 0..1, colour); darker towards the ends."""
    return [(0.0, theme.cold), (0.25, mix(theme.middle, theme.cold, 0.5)), (0.5, theme.middle),
            (0.75, mix(theme.middle, theme.hot, 0.5)), (1.0, theme.hot)]  # fmt: skip


def sequential(theme: Theme) -> list[tuple[float, str]]:
    """Nothing to hot, as (position 0..1, colour)."""
    return [(0.0, theme.middle), (0.5, mix(theme.middle, theme.hot, 0.5)), (1.0, theme.hot)]
