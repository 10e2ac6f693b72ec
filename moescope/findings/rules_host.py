"""Rules about devices that idle: for the host of a single late rank, for the hosts of all, or for neither."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import polars as pl

from moescope.findings.culprits import Advice, culprits
from moescope.findings.inputs import Inputs
from moescope.findings.model import Finding
from moescope.findings.scale import NOTICEABLE, ms

HOST_SHARE = 0.15
"""Share of the step that devices idle for their hosts from which it is reported without a late rank."""
FEW_RANKS = 0.25
"""Late hosts are single ones where this share of the ranks (one at least) holds MOST of the waits charged to hosts."""
MOST = 0.8
MOST_OPERATIONS = 5
_KINDS = ("host_launch", "sync", "outside")

_CLAIM = {
    False: "Devices idle {cost} per step because the host has not launched the next work",
    True: "The threads that compute idle {cost} per step between operations",
}
"""By whether the run computes on the hosts' processors."""
_ADVICE = Advice(
    "Fuse or compile small operations, capture CUDA graphs, remove synchronising calls (.item(), split sizes) and move "
    "data loading off the step.",
    "Fuse or compile small operations, move data loading and logging off the step, and give every rank its own cores.",
)


def late_host(inputs: Inputs) -> Iterator[Finding]:
    """A rank is late because its host launched late, where few ranks are."""
    if not _is_few(inputs):
        return
    found = culprits(
        inputs,
        cause="host",
        code="host-bound",
        claim="{who} idle before work comes from the host; the others wait {cost} per step for it",
        advice=Advice(
            "Look at that host's data loading, garbage collection, logging and CPU contention at the marked times.",
            "Look at that rank's data loading, garbage collection, logging and other processes on its cores.",
        ),
    )
    for finding in found:
        operations = _operations(inputs, finding.rank)
        yield replace(finding, evidence={**finding.evidence, **operations})


def host_bound(inputs: Inputs) -> Iterator[Finding]:
    """Devices of all ranks idle while their hosts prepare the next launch, and ranks wait for each other meanwhile.

    Where hosts of many ranks are late in turn, the waits charged to them are part of the same loss: with hosts that
    keep up, nobody would idle, and nobody would wait for one that does.
    """
    idle = {kind: inputs.mean_part_ns(f"idle.{kind}") for kind in _KINDS}
    waits = 0.0 if _is_few(inputs) else _charged_ns(inputs) / max(len(inputs.ranks), 1)
    cost = sum(idle.values()) + waits
    share = inputs.share(cost)
    if inputs.share(sum(idle.values())) < HOST_SHARE and inputs.share(waits) < NOTICEABLE:
        return
    on_cpu = all(inputs.is_on_cpu(rank) for rank in inputs.ranks)
    waiting = f", {ms(waits)} of it waiting for another rank's" if waits else ""
    yield Finding(
        code="host-bound",
        severity="warning",
        rank=None,
        layer=None,
        cost_ns_per_step=round(cost),
        share_of_step=share,
        claim=f"{_CLAIM[on_cpu].format(cost=ms(cost))}{waiting}.",
        advice=f"{_ADVICE.on_cpu if on_cpu else _ADVICE.on_device} The cost is an upper bound.",
        confidence="medium",
        basis=inputs.finding_basis,
        evidence={
            "page": "host",
            "is_upper_bound": True,
            **{f"{kind}_ns": round(ns) for kind, ns in idle.items()},
            "waiting_for_late_hosts_ns": round(waits),
            **_operations(inputs, None),
            "formula": "mean over ranks of idle time before late launches, and of waits charged to many ranks' hosts",
        },
    )


def device_idle(inputs: Inputs) -> Iterator[Finding]:
    """Devices that idle between work that was launched in time."""
    gap = inputs.mean_part_ns("idle.gap")
    share = inputs.share(gap)
    if share < HOST_SHARE:
        return
    yield Finding(
        code="device-idle",
        severity="warning",
        rank=None,
        layer=None,
        cost_ns_per_step=round(gap),
        share_of_step=share,
        claim=f"Devices idle {ms(gap)} per step although the next work was launched already.",
        advice="Look at these stretches on the timeline: many short kernels in a row or in a graph (fuse them), device "
        "events the profiler lost or filtered out, or another process on the device. The cost is an upper bound.",
        confidence="medium",
        basis=inputs.finding_basis,
        evidence={
            "page": "host",
            "is_upper_bound": True,
            **_operations(inputs, None, ("gap",)),
            "formula": "mean over ranks of idle.gap",
        },
    )


def _charged_ns(inputs: Inputs) -> float:
    """Waits charged to hosts per step, summed over the waiting ranks."""
    return float(inputs.cause_ns("host")["charged_ns"].sum())


def _is_few(inputs: Inputs) -> bool:
    """Whether few ranks hold most of the waits charged to hosts."""
    charged = inputs.cause_ns("host")["charged_ns"].sort(descending=True)
    few = max(int(len(inputs.ranks) * FEW_RANKS), 1)
    return float(charged.head(few).sum()) >= MOST * float(charged.sum())


def _operations(inputs: Inputs, rank: int | None, kinds: Sequence[str] = _KINDS) -> Mapping[str, object]:
    """The operations with most of this idle time, on a rank or on all; nothing where none is known."""
    table = inputs.idle_causes
    if table.is_empty():
        return {}
    mine = table.filter(pl.col("kind").is_in(kinds))
    mine = mine.filter(pl.col("rank") == rank) if rank is not None else mine
    count = max(mine["rank"].n_unique(), 1)
    cause = ("kind", "operation", "detail")
    most = mine.group_by(cause, maintain_order=True).agg(pl.col("ns_per_step").sum() / count)
    most = most.sort(["ns_per_step", *cause], descending=[True, False, False, False]).head(MOST_OPERATIONS)
    rows = most.select(*cause, "ns_per_step").rows()
    return {"operations_ns": {_name(*row[:3]): round(row[3]) for row in rows}}


def _name(kind: str, operation: str, detail: str) -> str:
    return f"{kind} {operation} ({detail})" if detail else f"{kind} {operation}"
