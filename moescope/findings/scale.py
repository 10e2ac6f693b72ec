"""What all rules share: from which share of the step a loss is told, how grave it is, and how a duration reads."""

from __future__ import annotations

NOTICEABLE = 0.02
"""Share of the step from which a loss is a warning."""
GRAVE = 0.10
"""Share of the step from which a loss that a fix would recover is critical."""
STANDS_OUT = 2.0
"""A rank is singled out when its cost is this many times the median rank's."""


def ms(ns: float) -> str:
    """A duration for people."""
    if ns >= 1e9:
        return f"{ns / 1e9:.2f} s"
    return f"{ns / 1e6:.2f} ms" if ns >= 1e6 else f"{ns / 1e3:.1f} µs"


def severity(share: float) -> str:
    """Of a loss of this share of the step."""
    if share >= GRAVE:
        return "critical"
    return "warning" if share >= NOTICEABLE else "info"
