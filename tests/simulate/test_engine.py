"""Queues, streams and collectives in time; truth that agrees with itself."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from moescope.simulate import Network, parse_fault
from moescope.simulate.engine import Engine
from moescope.simulate.fabric import Fabric
from moescope.simulate.faults import KINDS
from moescope.simulate.groups import groups_of
from moescope.simulate.kineto import stream_of
from moescope.simulate.program import Copy, Exchange, Kernel, Program, Reduce
from moescope.simulate.scenario import scenarios_of
from moescope.simulate.simulation import run_simulation
from moescope.simulate.truth import arrival_waits, collectives, step_ns

from .conftest import tiny

QUIET = Network(noise=0.0, exit_jitter_ns=0.0, resolution=0.0)


def test_two_ranks_one_exchange_by_hand():
    config = tiny(ranks=2, network=dataclasses.replace(QUIET, intra_bytes_per_ns=100.0, intra_latency_ns=5_000.0))
    fabric = Fabric(config, groups_of(config), scenarios_of(config))
    sizes = np.array([[[[7.0, 3e6], [1e6, 7.0]]]])
    end, together = fabric.exchange(sizes, np.array([[10_000.0, 60_000.0]]), np.random.default_rng(0))
    # 3 MB at 100 bytes/ns take 30 us; they start at 60 + 5 us, or 5 us after a common arrival.
    assert end.tolist() == [[95_000.0, 95_000.0]]
    assert together.tolist() == [35_000.0, 35_000.0]


def test_a_reduction_ends_for_all_after_the_last():
    config = tiny(network=dataclasses.replace(QUIET, inter_bytes_per_ns=10.0, inter_latency_ns=1_000.0))
    fabric = Fabric(config, groups_of(config), scenarios_of(config))
    op = Reduce(name="", collective="allreduce", group="world", elements=1_000, dtype="Float", item_bytes=4)
    end, together = fabric.reduce(op, np.array([[0.0, 10.0, 500.0, 20.0]]), np.random.default_rng(0))
    assert end.tolist() == [[500.0 + 1_000.0 + 600.0] * 4]
    assert together.tolist() == [1_600.0] * 4


def test_kernels_queue_behind_each_other_and_the_host_waits_for_copies_back():
    config = tiny(kernel_noise=0.0)
    engine = Engine(config, scenarios_of(config))
    long, short = (Kernel(name="k", kernel="k", duration_ns=d) for d in (1e6, 10.0))
    engine.execute(Program([long, short, Copy(name="c", num_bytes=8, to_host=True), short]), 0)
    first, second, copy, last = engine.finish().records
    assert (first.end - first.start == 1_000_000).all()
    assert (second.start - first.end == 900).all()
    assert (second.cpu_end < first.end).all()
    assert (copy.cpu_end > copy.end).all()
    assert (last.cpu_start > copy.end).all()


def test_no_two_device_events_of_a_stream_overlap(healthy):
    by_stream: dict[int, list] = {}
    for record in healthy.run.records:
        stream = stream_of(record.op)
        if stream is not None:
            by_stream.setdefault(stream, []).append(record)
    assert len(by_stream) == 3
    for records in by_stream.values():
        starts, ends = (np.array([getattr(r, name) for r in records]) for name in ("start", "end"))
        assert (starts[1:] >= ends[:-1]).all()


def test_cause_precedes_effect(healthy):
    for record in healthy.run.records:
        assert (record.cpu_start <= record.launch).all()
        assert (record.launch <= record.cpu_end).all()
        assert (record.launch <= record.start).all()
        assert (record.start <= record.end).all()
    for truth in collectives(healthy.groups, healthy.run.records):
        senders = (truth.received > 0) if truth.received.shape[1] > 1 else np.ones((len(truth.ranks),) * 2, dtype=bool)
        last = np.where(senders, truth.start[None, :], 0).max(1)
        assert (truth.end >= last).all()


def test_waits_and_transfers_make_up_each_collective(healthy):
    found = collectives(healthy.groups, healthy.run.records)
    assert {t.kind for t in found} == {"all_to_allv", "all_to_all", "allreduce"}
    for truth in found:
        assert (truth.arrival_wait >= 0).all()
        assert (truth.arrival_wait <= truth.end - truth.start).all()
        assert (truth.removable_wait >= 0).all()
        assert (truth.removable_wait <= truth.arrival_wait).all()
        assert truth.sent.sum() == truth.received.sum()


def test_what_the_dispatch_brings_the_combine_takes_back(healthy):
    sent = {}
    for record in healthy.run.records:
        if isinstance(record.op, Exchange):
            sent[record.op.span] = record.op.sent[0]
    for span, rows in sent.items():
        if span.phase == "dispatch":
            back = sent[dataclasses.replace(span, phase="combine")]
            assert (back == rows.swapaxes(1, 2)).all()


def test_arrival_waits_look_only_at_who_has_bytes():
    start, end = np.array([0, 50, 100]), np.array([120, 60, 130])
    depends = np.array([[1, 0, 1], [0, 1, 1], [1, 0, 1]], dtype=bool)
    assert arrival_waits(start, end, depends).tolist() == [100, 10, 0]


COSTLY = sorted(kind for kind, fault in KINDS.items() if fault.cause and kind != "tiny_experts")


@pytest.mark.parametrize("kind", COSTLY)
def test_a_faults_cost_is_the_difference_of_two_runs(kind, healthy):
    simulation = run_simulation(tiny(kind))
    times = dict(zip([s.name for s in simulation.scenarios], step_ns(simulation.run), strict=True))
    without = times[f"without {parse_fault(kind).describe()}"]
    assert times["run"] > without * 1.005
    assert without == pytest.approx(step_ns(healthy.run)[0], rel=1e-9)


def test_tiny_experts_cost_time_at_the_same_routing():
    simulation = run_simulation(tiny("tiny_experts"))
    run, without = step_ns(simulation.run)
    assert run > without * 1.005
    assert simulation.config.num_experts == 16 * simulation.config.model.num_experts


def test_microbatches_in_flight_together_hide_communication():
    serial, overlapped = (step_ns(run_simulation(tiny(overlap=o, tokens=8192)).run)[0] for o in (False, True))
    assert overlapped < serial * 0.97


def test_overlap_moves_the_same_bytes():
    plain, overlapped = (run_simulation(tiny(overlap=o)) for o in (False, True))
    totals = [
        sorted(int(r.op.sent.sum()) for r in s.run.records if isinstance(r.op, Exchange)) for s in (plain, overlapped)
    ]
    assert totals[0] == totals[1]


def test_memory_returns_to_where_it_began(healthy):
    for memory in healthy.memory:
        live: dict[int, int] = {}
        for event in memory.events:
            if event.num_bytes > 0:
                assert event.address not in live
                live[event.address] = event.num_bytes
            else:
                assert live.pop(event.address) == -event.num_bytes
        assert len(live) <= 3  # outputs of the last operations
        assert memory.peak <= memory.reserved


def test_nearly_full_memory_is_nearly_full():
    config = tiny("near_full_memory:rank=2,share=0.9")
    simulation = run_simulation(config)
    peaks = [memory.peak / config.device.memory_bytes for memory in simulation.memory]
    assert peaks[2] == pytest.approx(0.9, abs=1e-6)
    assert max(peaks[:2]) < 0.2
    assert simulation.memory[2].reserved < config.device.memory_bytes
