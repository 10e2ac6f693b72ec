"""Identities of the whole way from files to numbers, on random jobs: sums are exact, and only what matters matters."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from random_traces import Job, jobs
from tiny_moe import balanced, play
from tiny_trace import BASE_NS, TinyRank, write

from moescope.attribution.labels import PARTS
from moescope.views.build import analyze
from moescope.views.json import EXTRA_SECTIONS, to_json
from moescope.views.model import Analysis


def analysed(
    job: Job, *, shift_ns: int = 0, name: str = "rank{rank}.json", number: Callable[[int], int] = int
) -> Analysis:
    with tempfile.TemporaryDirectory() as folder:
        return analyze(write(job.ranks(number), Path(folder), shift_ns=shift_ns, name=name), cache=False)


@settings(max_examples=20)
@given(jobs())
def test_parts_fill_every_step_and_charges_fill_every_wait(job: Job) -> None:
    analysis = analysed(job)
    assert len(analysis.ranks) == len(job.hosts) * len(job.local)
    for row in analysis.ranks:
        assert tuple(row.parts_ns) == PARTS
        assert sum(row.parts_ns.values()) == row.window_ns
        assert min(row.parts_ns.values()) >= 0
    waited = sum(wait.arrival_wait_ns for wait in analysis.waits)
    in_collectives = sum(r.arrival_wait_ns for collective in analysis.collectives for r in collective.by_rank)
    per_step = sum(cause.charged_wait_ns_per_step for cause in analysis.causes)
    assert waited == in_collectives
    assert per_step == pytest.approx(waited / len(job.local), abs=1)
    for cause in analysis.causes:
        assert cause.cost_ns_per_step >= 0
        assert cause.charged_wait_ns_per_step >= 0


@settings(max_examples=10)
@given(jobs())
def test_neither_the_time_of_day_nor_the_names_of_files_matter(job: Job) -> None:
    before, after = analysed(job), analysed(job, shift_ns=86_400_000_000_123, name="z{rank}_trace.json")
    for field in ("waits", "causes", "wait_edges", "steps", "load", "memory"):
        expected, got = (_without_times(getattr(analysis, field)) for analysis in (before, after))
        assert got == expected
    assert [row.parts_ns for row in after.ranks] == [row.parts_ns for row in before.ranks]
    assert [row.unions_ns for row in after.ranks] == [row.unions_ns for row in before.ranks]
    assert [finding.code for finding in after.findings] == [finding.code for finding in before.findings]
    assert [clock.offset_ns for clock in after.clock] == [clock.offset_ns for clock in before.clock]


def _without_times(value: object) -> object:
    """The value with absolute times left out."""
    if isinstance(value, tuple):
        return tuple(_without_times(item) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = {field.name for field in dataclasses.fields(value)} - {"start_ns", "end_ns", "peak_at_ns"}
        return {name: _without_times(getattr(value, name)) for name in sorted(names)}
    return value


@settings(max_examples=10)
@given(jobs())
def test_what_ranks_are_called_does_not_matter(job: Job) -> None:
    """Numbers go round by one: every rank keeps its waits and its parts under its new number."""
    job = dataclasses.replace(job, hosts=("node0",) * len(job.hosts))  # else the reference clock could move
    size = len(job.hosts)
    before, after = analysed(job), analysed(job, number=lambda rank: (rank + 1) % size)
    renamed = {((row.rank + 1) % size, row.step): row.parts_ns for row in before.ranks}
    assert {(row.rank, row.step): row.parts_ns for row in after.ranks} == renamed
    waits = {((wait.rank + 1) % size, wait.step, wait.kind): wait.arrival_wait_ns for wait in before.waits}
    assert {(wait.rank, wait.step, wait.kind): wait.arrival_wait_ns for wait in after.waits} == waits


def test_the_same_input_gives_the_same_numbers_to_the_last_bit(tmp_path: Path) -> None:
    """Sums of floats depend on their order, so nothing may depend on which thread was first."""
    folder = write(play([balanced(step) for step in range(6)], pace={1: 1.37, 2: 1.11, 3: 0.93}), tmp_path)
    texts = {json.dumps(to_json(analyze(folder, cache=False), EXTRA_SECTIONS)) for _ in range(5)}
    assert len(texts) == 1


def test_a_step_by_hand(tmp_path: Path) -> None:
    """Rank 0 arrives 3 us early in the reduction and hides 1 us of it under a kernel on the other stream."""
    early, late = TinyRank(0, 2), TinyRank(1, 2)
    for rank in (early, late):
        rank.step(0, 0, 20_000)
        rank.kernel("sgemm", 0, 4_000, launched=0)
    early.reduce(4_000, 8_000, seq=0, launched=100)
    late.kernel("vectorized_elementwise_kernel", 4_000, 3_000, launched=200)
    late.reduce(7_000, 5_000, seq=0, launched=300)
    early.kernel("sgemm", 5_000, 1_000, launched=400, stream=8)
    early.copy(12_000, 2_000, launched=500)
    early.kernel("multi_tensor_apply_kernel", 16_000, 4_000, launched=15_500)
    late.kernel("multi_tensor_apply_kernel", 12_000, 8_000, launched=500)
    analysis = analyze(write([early, late], tmp_path), cache=False)
    first, second = ({part: ns for part, ns in row.parts_ns.items() if ns} for row in analysis.ranks)
    assert first == {
        "compute.other_gemm": 5_000, "compute.optimizer": 4_000,
        "comm.reduction.wait_removable": 2_000, "comm.reduction.transfer": 5_000,
        "memory.copy": 2_000, "idle.host_launch": 1_500, "idle.gap": 500,
    }  # fmt: skip
    assert second == {
        "compute.other_gemm": 4_000, "compute.elementwise": 3_000, "compute.optimizer": 8_000,
        "comm.reduction.transfer": 5_000,
    }  # fmt: skip
    (wait, _) = analysis.waits
    assert (wait.arrival_wait_ns, wait.removable_wait_ns, wait.transfer_ns) == (3_000, 3_000, 5_000)
    assert [row.start_ns - BASE_NS for row in analysis.ranks] == [0, 0]


def test_waiting_that_overlapped_with_data_is_a_part_of_its_own(tmp_path: Path) -> None:
    """Six calm exchanges of 1 us + 1 ns per byte; in the seventh rank 0 came 2 us early and lost only one of them."""
    ranks = [TinyRank(0, 2), TinyRank(1, 2)]
    for turn in range(6):
        rows, at = 10 * (turn + 1), 10_000 * turn
        for rank in ranks:
            rank.exchange(at, 1_000 + 8 * rows, sent=[rows, rows], received=[rows, rows], seq=turn)
    alone = 1_000 + 8 * 100
    for rank, start in zip(ranks, (60_000, 62_000), strict=True):
        rank.exchange(start, 61_000 + alone - start, sent=[100, 100], received=[100, 100], seq=6)
        rank.step(0, 0, 100_000)
    parts = analyze(write(ranks, tmp_path), cache=False).ranks[0].parts_ns
    assert parts["comm.all_to_all.wait_removable"] == pytest.approx(1_000, abs=5)
    assert parts["comm.all_to_all.wait_overlapped"] == pytest.approx(1_000, abs=5)


def test_a_wait_reaches_over_all_kernels_of_its_collective(tmp_path: Path) -> None:
    """Rank 0's reduction is two kernels, 1-3 us and 4-9 us; rank 1 comes at 6 us: 2 + 2 us were waiting."""
    early, late = TinyRank(0, 2), TinyRank(1, 2)
    for rank in (early, late):
        rank.step(0, 0, 10_000)
    early.reduce(1_000, 2_000, seq=7)
    early.reduce(4_000, 5_000, seq=7)
    late.reduce(6_000, 3_000, seq=7)
    analysis = analyze(write([early, late], tmp_path), cache=False)
    parts = next(row.parts_ns for row in analysis.ranks if row.rank == 0)
    assert parts["comm.reduction.wait_removable"] == 4_000
    assert parts["comm.reduction.transfer"] == 3_000


def test_a_kernel_does_not_arrive_before_its_launch(tmp_path: Path) -> None:
    """Rank 1's kernel is recorded 2 us before the call that launched it: it came at 6 us, not at 4."""
    early, late = TinyRank(0, 2), TinyRank(1, 2)
    for rank in (early, late):
        rank.step(0, 0, 10_000)
    early.reduce(1_000, 8_000, launched=500)
    late.reduce(4_000, 5_000, launched=6_000)
    analysis = analyze(write([early, late], tmp_path), cache=False)
    assert [rank.arrival_wait_ns for rank in analysis.collectives[0].by_rank] == [5_000, 0]


def test_a_lost_collective_does_not_shift_what_ranks_are_compared_at(tmp_path: Path) -> None:
    """Rank 2 lost its first reduction. All later ones are compared turn by turn, so that nobody looks slow."""
    ranks = [TinyRank(rank, 4) for rank in range(4)]
    for rank in ranks:
        rank.step(0, 0, 100_000)
        for turn in range(6):
            rank.kernel("gemm", 15_000 * turn, 1_000 * (turn + 1))
            if (rank.rank, turn) != (2, 0):
                rank.reduce(15_000 * turn + 1_000 * (turn + 1), 2_000, elements=100 + turn)
    analysis = analyze(write(ranks, tmp_path), cache=False)
    path = analysis.critical_path
    assert path is not None
    assert [cause for cause in path.causes if cause.cause == "slow_rank"] == []


def test_waits_known_from_a_kernels_name_alone_are_reported_as_such(tmp_path: Path) -> None:
    """One rank's trace of DeepEP: its notify kernel counts as waiting, and what that rests on is said."""
    rank = TinyRank(0, 2)
    rank.step(0, 0, 100_000)
    rank.kernel("void deep_ep::intranode::notify_dispatch<8>(int*)", 20_000, 30_000, launched=1_000)
    analysis = analyze(write([rank], tmp_path), cache=False)
    assert analysis.ranks[0].parts_ns["comm.all_to_all.wait_removable"] == 30_000
    (missing,) = [entry for entry in analysis.missing if "DeepEP" in entry.what]
    assert "by their name alone" in missing.why
