"""What really happened, for comparison with an analysis: ``truth.json``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moescope.simulate.config import SimConfig
from moescope.simulate.engine import Engine, Record, Run
from moescope.simulate.kineto import EPOCH_NS, FIRST_SEQUENCE, GroupNames
from moescope.simulate.program import Exchange, Reduce
from moescope.simulate.scenario import Scenario

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

SCHEMA = "moescope.truth/1"
_CLOCK = 3


@dataclass(frozen=True, slots=True)
class HostClocks:
    """Local time = true time + offset + drift * true time, true time counted from the start of the run."""

    offset_ns: IntArray
    """[hosts]."""
    drift_ppm: FloatArray
    """[hosts]."""

    def local(self, true_ns: IntArray, host: int) -> IntArray:
        """True times since the start of the run as Unix times on the host's clock."""
        drift = np.rint(true_ns * (self.drift_ppm[host] * 1e-6)).astype(np.int64)
        return np.asarray(true_ns + drift + self.offset_ns[host] + EPOCH_NS)


def host_clocks(config: SimConfig) -> HostClocks:
    """The first host is the reference; the others are off where a ``clock`` fault says so."""
    offset, drift = np.zeros(config.num_hosts), np.zeros(config.num_hosts)
    rng = np.random.default_rng([config.seed, _CLOCK])
    for fault in config.faults:
        if fault.kind == "clock":
            offset += rng.uniform(-1, 1, config.num_hosts) * fault.offset_ms * 1e6  # type: ignore[attr-defined]
            drift += rng.uniform(-1, 1, config.num_hosts) * fault.drift_ppm  # type: ignore[attr-defined]
    offset[0] = drift[0] = 0.0
    return HostClocks(np.rint(offset).astype(np.int64), drift)


@dataclass(frozen=True, slots=True)
class CollectiveTruth:
    """One collective of one group; arrays are [members]."""

    record: Record
    group: str
    index: int
    """Which of the groups of this kind."""
    sequence: int
    ranks: IntArray
    start: IntArray
    end: IntArray
    arrival_wait: IntArray
    removable_wait: IntArray
    send_bytes: IntArray
    receive_bytes: IntArray


def collectives(engine: Engine, run: Run) -> list[CollectiveTruth]:
    """Every collective with its waits, in program order.

    Arrival wait: latest start over the members with bytes for this one, minus its own start. Removable wait: its
    duration minus what it would have taken had all arrived together, kept between 0 and the arrival wait.
    """
    found: list[CollectiveTruth] = []
    sequence = dict.fromkeys(engine.groups, FIRST_SEQUENCE)
    for record in run.records:
        if not isinstance(record.op, Exchange | Reduce):
            continue
        kind = "ep" if isinstance(record.op, Exchange) else record.op.group
        for index, ranks in enumerate(engine.groups[kind].members):
            found.append(_collective(record, kind, index, sequence[kind], ranks))
        sequence[kind] += 1
    return found


def _collective(record: Record, kind: str, index: int, sequence: int, ranks: IntArray) -> CollectiveTruth:
    op = record.op
    start, end = record.start[ranks], record.end[ranks]
    if isinstance(op, Exchange):
        rows = op.sent[0, index]
        send, receive = rows.sum(1) * op.row_bytes, rows.sum(0) * op.row_bytes
        depends = (rows.T > 0) | np.eye(len(ranks), dtype=bool)
    else:
        assert isinstance(op, Reduce)
        send = receive = np.full(len(ranks), op.elements * op.item_bytes)
        depends = np.ones((len(ranks), len(ranks)), dtype=bool)
    last = np.where(depends, start[None, :], np.iinfo(np.int64).min).max(1)
    arrival = np.clip(last - start, 0, end - start)
    together = np.zeros(len(ranks)) if record.together is None else record.together[ranks]
    removable = np.clip(np.rint(end - start - together).astype(np.int64), 0, arrival)
    return CollectiveTruth(record, kind, index, sequence, ranks, start, end, arrival, removable, send, receive)


def step_ns(run: Run) -> FloatArray:
    """Mean step time of each scenario, the longest rank's: [scenarios]."""
    first, last = run.step_starts[0], run.step_starts[-1]
    return np.asarray((last - first).max(1) / (len(run.step_starts) - 1))


def truth_of(config: SimConfig, engine: Engine, run: Run, scenarios: tuple[Scenario, ...], clocks: HostClocks,
             names: list[GroupNames]) -> dict[str, object]:
    """The content of ``truth.json``; times are Unix nanoseconds on the first host's clock."""
    found = collectives(engine, run)
    steps = [s[0].astype(np.int64) + EPOCH_NS for s in run.step_starts]
    hosts = [{"host": config.host_name(h), "ranks": [r for r in range(config.ranks) if config.host_of(r) == h],
              "offset_ns": int(clocks.offset_ns[h]), "drift_ppm": float(clocks.drift_ppm[h]), "t0_ns": EPOCH_NS}
             for h in range(config.num_hosts)]
    return {
        "schema": SCHEMA, "basis": "simulated", "seed": config.seed, "ranks": config.ranks, "ep_size": config.ep,
        "clock": hosts,
        "steps": [{"step": config.first_step + i, "start_ns": steps[i].tolist(), "end_ns": steps[i + 1].tolist()}
                  for i in range(config.steps)],
        "step_ns": float(step_ns(run)[0]),
        "faults": _faults(config, run, scenarios),
        "collectives": [_row(c, names) for c in found],
    }


def _faults(config: SimConfig, run: Run, scenarios: tuple[Scenario, ...]) -> list[dict[str, object]]:
    times = {s.name: float(t) for s, t in zip(scenarios, step_ns(run), strict=True)}
    rows: list[dict[str, object]] = []
    for fault in config.faults:
        without = times.get(f"without {fault.describe()}")
        cost = 0.0 if without is None else times["run"] - without
        rows.append({"fault": fault.describe(), "kind": fault.kind, "cause": fault.cause, "rank": fault.culprit(),
                     "layer": None, "cost_ns_per_step": cost})
    return rows


def _row(c: CollectiveTruth, names: list[GroupNames]) -> dict[str, object]:
    op = c.record.op
    span = op.span
    return {
        "group": names[int(c.ranks[0])].names[c.group], "kind": "all_to_allv" if isinstance(op, Exchange) else op.collective,  # type: ignore[attr-defined]
        "sequence": c.sequence, "step": c.record.step, "layer": span.layer if span else None,
        "microbatch": span.microbatch if span else None, "phase": span.phase if span else None, "backward": bool(span and span.backward),
        "ranks": c.ranks.tolist(), "start_ns": (c.start + EPOCH_NS).tolist(), "end_ns": (c.end + EPOCH_NS).tolist(),
        "arrival_wait_ns": c.arrival_wait.tolist(), "removable_wait_ns": c.removable_wait.tolist(),
        "transfer_ns": (c.end - c.start - c.arrival_wait).tolist(),
        "send_bytes": c.send_bytes.tolist(), "recv_bytes": c.receive_bytes.tolist(),
    }
