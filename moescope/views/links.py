"""A finding as pages show it: its cost, the numbers behind it, and where they are: page, rank, layer, time range."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlencode

from moescope.findings.model import Finding
from moescope.views.model import Analysis, Collective
from moescope.views.text import NONE, duration, percent, significant, size

PAGES = ("verdict", "timeline", "load", "communication", "gemm", "memory", "host", "steps", "run")
_PAGE_OF_CODE = {
    "load-imbalance": "load",
    "router-collapse": "load",
    "dropped-tokens": "load",
    "balanced": "load",
    "slow-rank": "communication",
    "slow-network": "communication",
    "volume-imbalance": "communication",
    "pipeline-bubbles": "communication",
    "exposed-communication": "communication",
    "small-gemm": "gemm",
    "host-bound": "host",
    "device-idle": "host",
    "memory-peak": "memory",
    "allocator-stall": "memory",
    "clock-uncertain": "run",
    "incomplete-input": "run",
}
_NOT_SHOWN = ("page", "is_upper_bound")


@dataclass(frozen=True, slots=True)
class Target:
    """A place in the dashboard; times are on the common clock."""

    page: str
    rank: int | None = None
    layer: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None

    @property
    def query(self) -> str:
        """The place as a query string without ``?``; empty when only the page matters."""
        fields: dict[str, object] = {"rank": self.rank, "layer": self.layer}
        if self.start_ns is not None and self.end_ns is not None:
            fields["t"] = f"{self.start_ns}-{self.end_ns}"
        return urlencode({key: value for key, value in fields.items() if value is not None})


def evidence(finding: Finding) -> Target:
    """The page with the numbers behind ``finding``, at its rank and layer."""
    page = str(finding.evidence.get("page") or _PAGE_OF_CODE.get(finding.code, "verdict"))
    return Target(page if page in PAGES else "verdict", finding.rank, finding.layer)


def moment(analysis: Analysis, finding: Finding) -> Target | None:
    """A stretch of the timeline that shows ``finding``; None where nothing was recorded to show.

    That is the range its evidence names, else the collective in which others waited longest for its rank (in its
    layer, where it names one), else its rank's longest step.
    """
    start, end = finding.evidence.get("start_ns"), finding.evidence.get("end_ns")
    if isinstance(start, int) and isinstance(end, int):
        return Target("timeline", finding.rank, finding.layer, start, end)
    worst = _worst(analysis.collectives, finding.rank, finding.layer)
    if worst is not None:
        first = min(member.start_ns for member in worst.by_rank)
        last = max(member.end_ns for member in worst.by_rank)
        margin = max(1, (last - first) // 4)
        return Target("timeline", finding.rank, finding.layer, first - margin, last + margin)
    steps = [row for row in analysis.ranks if finding.rank is None or row.rank == finding.rank]
    if not steps:
        return None
    longest = max(steps, key=lambda row: row.window_ns)
    return Target("timeline", finding.rank, None, longest.start_ns, longest.start_ns + longest.window_ns)


def moment_text(analysis: Analysis, finding: Finding) -> str | None:
    """That stretch in words, from the start of the step it begins in; None where there is none."""
    target = moment(analysis, finding)
    if target is None or target.start_ns is None or target.end_ns is None:
        return None
    start_ns, end_ns = target.start_ns, target.end_ns
    step = max((s for s in analysis.steps if s.start_ns <= start_ns), key=lambda s: s.start_ns, default=None)
    origin_ns, name = (step.start_ns, f"step {step.step}") if step else (start_ns, "the start")
    whose = "" if target.rank is None else f", rank {target.rank}"
    return f"{duration(start_ns - origin_ns)} to {duration(end_ns - origin_ns)} after {name} begins{whose}"


def cost(finding: Finding) -> tuple[str, str] | None:
    """What a finding costs per step and as a share of it; None where it has no cost of its own."""
    if finding.cost_ns_per_step <= 0:
        return None
    at_most = "at most " if finding.evidence.get("is_upper_bound") else ""
    return f"{at_most}{duration(finding.cost_ns_per_step)}", percent(finding.share_of_step)


def numbers(finding: Finding) -> list[tuple[str, str]]:
    """The evidence as labelled text: units from the names, lists and objects as they are."""
    return [(_label(key), _shown(key, value)) for key, value in finding.evidence.items() if key not in _NOT_SHOWN]


def _label(key: str) -> str:
    name = key.removesuffix("_ns") if key not in ("start_ns", "end_ns") else key
    name = name.removeprefix("ns_") if name == "ns_per_step" else name
    return name.removesuffix("_bytes").replace("_", " ")


def _shown(key: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return ", ".join(
            f"{_label(name)}: {_shown(name if _has_unit(name) else key, item)}" for name, item in value.items()
        )
    if isinstance(value, list):
        return ("; " if value and isinstance(value[0], dict) else ", ").join(_shown(key, item) for item in value)
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: NONE}[value]
    if isinstance(value, int | float):
        return _number(key, value)
    return str(value)


def _has_unit(name: str) -> bool:
    return name.endswith(("_ns", "_bytes", "ns_per_step")) or name.startswith("share_")


def _number(key: str, value: float) -> str:
    if key.endswith(("_ns", "ns_per_step")) and key not in ("start_ns", "end_ns"):
        return duration(value)
    if key.endswith("_bytes"):
        return size(value)
    if key.startswith("share_"):
        return percent(value)
    return str(value) if isinstance(value, int) else significant(value)


def _worst(collectives: Iterable[Collective], rank: int | None, layer: int | None) -> Collective | None:
    late = [c for c in collectives if rank is None or _last(c) == rank]
    chosen = [c for c in late if c.layer == layer] if layer is not None else []
    return max(chosen or late, key=waiting_ns, default=None)


def _last(collective: Collective) -> int:
    return max(collective.by_rank, key=lambda member: member.start_ns).rank


def waiting_ns(collective: Collective) -> int:
    """Arrival waits of one collective, summed over its ranks."""
    return sum(member.arrival_wait_ns for member in collective.by_rank)
