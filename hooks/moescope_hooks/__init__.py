"""moescope_hooks: expert counts, collectives and traces from a training loop, in three lines.

    from moescope_hooks import Schedule, observe
    with observe(model, out="runs/mine", profile=Schedule(start=10, steps=2)) as obs:
        ...  # obs.microbatch() before each microbatch, obs.step(loss=loss) after each optimizer step

Needs torch, polars and the standard library. Names are imported on first use, so that readers of the
telemetry can import :mod:`moescope_hooks.schema` without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moescope_hooks.attach import Attachment as Attachment
    from moescope_hooks.observation import Observation as Observation
    from moescope_hooks.observation import observe as observe
    from moescope_hooks.ranges import collective as collective
    from moescope_hooks.ranges import traced as traced
    from moescope_hooks.routing import Routing as Routing
    from moescope_hooks.schedule import Schedule as Schedule

_HOMES = {
    "Attachment": "attach",
    "Observation": "observation",
    "Routing": "routing",
    "Schedule": "schedule",
    "collective": "ranges",
    "observe": "observation",
    "traced": "ranges",
}

__all__ = ["Attachment", "Observation", "Routing", "Schedule", "collective", "observe", "traced"]


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'moescope_hooks' has no attribute {name!r}")
    return getattr(importlib.import_module(f"moescope_hooks.{_HOMES[name]}"), name)
