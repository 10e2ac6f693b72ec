"""A finding: one line of the verdict, made by a rule and shown by every output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the verdict."""

    code: str
    """One of ``FINDING_CODES``."""
    severity: str
    """``critical``, ``warning``, ``info`` or ``good``."""
    rank: int | None
    layer: int | None
    cost_ns_per_step: int
    share_of_step: float
    claim: str
    advice: str
    confidence: str
    """``high``, ``medium`` or ``low``."""
    basis: str
    """``measured``, ``simulated`` or ``inferred``."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """Where the number comes from: page, step, time range, counts, formula; values as JSON holds them."""
