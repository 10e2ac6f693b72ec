"""What really happened, for comparison with an analysis: ``truth.json``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moescope.simulate.clocks import EPOCH_NS
from moescope.simulate.config import SimConfig
from moescope.simulate.engine import Record, Run
from moescope.simulate.faults import ExpertSkew, Fault
from moescope.simulate.groups import Groups
from moescope.simulate.kineto import FIRST_SEQUENCE, collective_name, group_kind
from moescope.simulate.layers import Microbatch
from moescope.simulate.program import Communication, Exchange, Reduce, Transfer
from moescope.simulate.scenario import without, without_compute
from moescope.simulate.simulation import Simulation

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

SCHEMA = "moescope.truth/1"


@dataclass(frozen=True, slots=True)
class CollectiveTruth:
    """One collective of one group; arrays are [members], true time since the start of the run."""

    record: Record
    group: str
    kind: str
    position: int
    """How many collectives the group had before, in the run."""
    ranks: IntArray
    start: IntArray
    end: IntArray
    arrival_wait: IntArray
    """Latest start over the members with bytes for this one, minus its own start."""
    removable_wait: IntArray
    """Duration minus what it would have been had all arrived together; at least 0, at most the arrival wait."""
    sent: IntArray
    """[members, members] bytes from i to j of an all-to-all; [members, 1] the buffer of a reduction."""
    received: IntArray
    """[members, members] bytes at i from j; [members, 1]."""


def collectives(groups: dict[str, Groups], records: Sequence[Record]) -> list[CollectiveTruth]:
    """Every collective of every group and every message of every pair, in program order."""
    found: list[CollectiveTruth] = []
    position: dict[tuple[str, int], int] = {}
    sent: dict[tuple[int, tuple[int, int, bool]], Record] = {}
    for record in records:
        op = record.op
        if not isinstance(op, Communication):
            continue
        kind = group_kind(op)
        if isinstance(op, Transfer):
            other = sent.pop((record.step, op.key), None)
            if other is None:
                sent[record.step, op.key] = record
                continue
            both = (other, record) if isinstance(other.op, Transfer) and other.op.sends else (record, other)
            found += [_message(*both, groups[kind], index, op.microbatch) for index in range(len(groups[kind].members))]
            continue
        for index, members in enumerate(groups[kind].members):
            if op.stage is None or op.stage == groups["dp"].of(int(members[0])):
                at = kind, index
                found.append(_collective(record, groups[kind], index, position.get(at, 0)))
                position[at] = position.get(at, 0) + 1
    return found


def _message(sender: Record, receiver: Record, groups: Groups, index: int, position: int) -> CollectiveTruth:
    """One message of the group ``index``; the sender stands first."""
    op = sender.op
    assert isinstance(op, Transfer)
    assert op.stage is not None
    ranks = groups.members[index][[op.stage, op.peer]]
    sides = list(zip((sender, receiver), ranks.tolist(), strict=True))
    start, end = (np.array([getattr(side, name)[rank] for side, rank in sides]) for name in ("start", "end"))
    together = np.array([0.0 if side.together is None else side.together[rank] for side, rank in sides])
    arrival = arrival_waits(start, end, np.ones((2, 2), dtype=bool))
    removable = np.clip(np.rint(end - start - together).astype(np.int64), 0, arrival)
    sent = np.array([[op.num_bytes], [0]])
    return CollectiveTruth(
        sender, groups.name(index), "p2p", position, ranks, start, end, arrival, removable, sent, sent[::-1]
    )


def _collective(record: Record, groups: Groups, index: int, position: int) -> CollectiveTruth:
    ranks, op = groups.members[index], record.op
    assert isinstance(op, Exchange | Reduce)
    sent, received, depends = _bytes(op, index, len(ranks))
    start, end = record.start[ranks], record.end[ranks]
    arrival = arrival_waits(start, end, depends)
    together = np.zeros(len(ranks)) if record.together is None else record.together[ranks]
    removable = np.clip(np.rint(end - start - together).astype(np.int64), 0, arrival)
    return CollectiveTruth(
        record, groups.name(index), collective_name(op), position, ranks, start, end, arrival, removable, sent, received
    )


def _bytes(op: Exchange | Reduce, index: int, n: int) -> tuple[IntArray, IntArray, NDArray[np.bool_]]:
    """Bytes sent and received, and which member depends on which."""
    if isinstance(op, Exchange):
        sent = op.sent[0, index] * op.row_bytes
        return sent, sent.T, (sent.T > 0) | np.eye(n, dtype=bool)
    buffer = np.full((n, 1), op.elements * op.item_bytes)
    return buffer, buffer, np.ones((n, n), dtype=bool)


def arrival_waits(start: IntArray, end: IntArray, depends: NDArray[np.bool_]) -> IntArray:
    """Latest start over the members that each depends on (itself included) minus its own, within its duration."""
    last = np.where(depends, start[None, :], np.iinfo(np.int64).min).max(1)
    return np.asarray(np.clip(last - start, 0, end - start))


def step_ns(run: Run) -> FloatArray:
    """Mean step time of each scenario on the rank that took longest, [scenarios]."""
    elapsed = run.step_starts[-1] - run.step_starts[0]
    return np.asarray(elapsed.max(1) / (len(run.step_starts) - 1))


def truth_of(simulation: Simulation, found: Sequence[CollectiveTruth]) -> dict[str, object]:
    """The content of ``truth.json``; times are Unix nanoseconds of true time, which is the first host's clock."""
    config, run, clocks = simulation.config, simulation.run, simulation.clocks
    starts = [np.rint(s[0]).astype(np.int64) + EPOCH_NS for s in run.step_starts]
    hosts = [
        {
            "host": config.host_name(h),
            "ranks": [r for r in range(config.ranks) if config.host_of(r) == h],
            "offset_ns": int(clocks.offset_ns[h]),
            "drift_ppm": float(clocks.drift_ppm[h]),
            "t0_ns": EPOCH_NS,
        }
        for h in range(config.num_hosts)
    ]
    times = {s.name: float(t) for s, t in zip(simulation.scenarios, step_ns(run), strict=True)}
    return {
        "schema": SCHEMA,
        "basis": "simulated",
        "seed": config.seed,
        "ranks": config.ranks,
        "ep_size": config.ep,
        **({"pp_size": config.pipeline} if config.pipeline > 1 else {}),
        "clock": hosts,
        "steps": [
            {"step": config.first_step + i, "start_ns": starts[i].tolist(), "end_ns": starts[i + 1].tolist()}
            for i in range(config.steps)
        ],
        "step_ns": times["run"],
        "healthy_step_ns": times.get("healthy", min(times.values())),
        "faults": [_fault(config, fault, times, simulation.steps) for fault in config.faults],
        "collectives": [_row(c) for c in found],
    }


def _fault(
    config: SimConfig, fault: Fault, times: dict[str, float], steps: Sequence[Sequence[Microbatch]]
) -> dict[str, object]:
    """One fault: what caused what, who did, and the step time that it cost (the run minus the run without it)."""
    total = times["run"] - times.get(without(fault), times["run"])
    culprits, costs = fault.culprits(config.ranks), {fault.cause: total} if fault.cause else {}
    if isinstance(fault, ExpertSkew):
        culprits = hottest(config, steps)
        compute = times["run"] - times[without_compute(fault)]
        costs = {"expert_load": compute, "volume_imbalance": total - compute}
    layer = getattr(fault, "layer", -1)
    return {
        "fault": fault.describe(),
        "kind": fault.kind,
        "cause": fault.cause,
        "rank": culprits[0] if len(culprits) == 1 else None,
        "ranks": culprits,
        "layer": None if layer < 0 else layer,
        "cost_ns_per_step": total,
        "costs_ns_per_step": costs,
    }


def hottest(config: SimConfig, steps: Sequence[Sequence[Microbatch]]) -> list[int]:
    """The ranks that received most rows in their group, most to blame first.

    In each microbatch and layer the hottest rank of each group is to blame for its rows above the mean; ranks with
    less than half of the largest blame are left out.
    """
    blame = np.zeros(config.ranks)
    every = np.arange(config.ranks).reshape(config.pipeline, -1, config.ep)
    for mb in (mb for step in steps for mb in step):
        for layer in mb.routing:
            groups = every[config.stage_of_layer(layer)]
            rows = mb.received(layer)[groups]
            hot = groups[np.arange(len(groups)), rows.argmax(1)]
            blame[hot] += rows.max(1) - rows.mean(1)
    order = np.argsort(-blame, kind="stable")
    return [int(rank) for rank in order if blame[rank] > 0 and blame[rank] >= blame.max() / 2]


def _row(c: CollectiveTruth) -> dict[str, object]:
    op, span = c.record.op, c.record.op.span
    return {
        "group": c.group,
        "kind": c.kind,
        "sequence": c.position + FIRST_SEQUENCE,
        "step": c.record.step,
        "layer": span.layer if span else None,
        "microbatch": op.microbatch if isinstance(op, Transfer) else span.microbatch if span else None,
        "phase": span.phase if span else None,
        "backward": op.gradient if isinstance(op, Transfer) else bool(span and span.backward),
        "ranks": c.ranks.tolist(),
        "start_ns": (c.start + EPOCH_NS).tolist(),
        "end_ns": (c.end + EPOCH_NS).tolist(),
        "arrival_wait_ns": c.arrival_wait.tolist(),
        "removable_wait_ns": c.removable_wait.tolist(),
        "transfer_ns": (c.end - c.start - c.arrival_wait).tolist(),
        "send_bytes": c.sent.sum(1).tolist(),
        "recv_bytes": c.received.sum(1).tolist(),
    }
