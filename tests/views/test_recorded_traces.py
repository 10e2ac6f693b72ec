"""Traces that real jobs recorded, and probes with known truth, against figures computed independently of this code.

They lie beside the repository and are not part of it; without them these tests are skipped.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from moescope.findings import FINDING_CODES
from moescope.views.build import analyze
from moescope.views.json import EXTRA_SECTIONS, to_json
from moescope.views.model import Analysis

TRACES = Path(__file__).parents[3] / "shared/traces"
US = 1000

pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="needs the recorded traces in ../shared/traces")

Open = Callable[..., Analysis]


@pytest.fixture(scope="session")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Open:
    """Analyse a copy of a folder, which may be read-only; each folder once."""
    known: dict[tuple[str, object], Analysis] = {}

    def analysis(name: str, hosts: Sequence[Sequence[int]] | None = None) -> Analysis:
        if (name, hosts) not in known:
            folder = tmp_path_factory.mktemp("traces") / "in"
            shutil.copytree(TRACES / name, folder, ignore=shutil.ignore_patterns(".moescope"))
            known[name, hosts] = analyze(folder, hosts=hosts, cache=False)
        return known[name, hosts]

    return analysis


def expected(name: str) -> Any:
    return json.loads((TRACES / name).read_text())


def waits_by_rank(analysis: Analysis) -> dict[int, int]:
    total: dict[int, int] = defaultdict(int)
    for collective in analysis.collectives:
        for rank in collective.by_rank:
            total[rank.rank] += rank.arrival_wait_ns
    return dict(total)


FOLDERS = (
    "dlrm8", "a2a16_rank0", "sampled_2_of_128", "cpu_only", "b200_eager", "mi300_resnet_ckpt", "qwen3_moe_mi300_decode",
    "legacy_resnet50", "gloo_moe_ep4", "probes/moe8_ep4", "probes/moe8_ep4_slowrank5", "probes/moe8_ep8_2host_clock",
    "probes/moe8_ep4_dropfirst",
)  # fmt: skip


@pytest.mark.parametrize("name", FOLDERS)
def test_sums_are_exact_and_everything_goes_into_json(name: str, opened: Open) -> None:
    analysis = opened(name)
    assert analysis.ranks
    for row in analysis.ranks:
        assert sum(row.parts_ns.values()) == row.window_ns > 0
        unions = row.unions_ns
        assert unions.busy + unions.idle == unions.total
        assert unions.exposed_communication <= unions.communication <= unions.busy
    charged = sum(cause.charged_wait_ns_per_step for cause in analysis.causes)
    waited = sum(wait.arrival_wait_ns for wait in analysis.waits)
    assert charged == pytest.approx(waited / len(analysis.steps), abs=1)
    assert {finding.code for finding in analysis.findings} <= set(FINDING_CODES)
    assert all(0 <= finding.share_of_step <= 1 for finding in analysis.findings)
    text = json.dumps(to_json(analysis, EXTRA_SECTIONS), allow_nan=False)
    assert json.loads(text)["ok"] is True


UNIONS = {
    "total": "total_us", "busy": "busy_us", "compute": "compute_us", "communication": "comm_us",
    "exposed_communication": "comm_exposed_us", "idle": "idle_us",
}  # fmt: skip


@pytest.mark.parametrize(
    "name", ["a2a16_rank0", "b200_eager", "dlrm8", "mi300_resnet_ckpt", "qwen3_moe_mi300_decode", "sampled_2_of_128"]
)
def test_unions_of_device_intervals(name: str, opened: Open) -> None:
    got = {row.rank: row.unions_ns for row in opened(name).ranks}
    figures = {
        file: row for file, row in expected("expected_gpu_unions.json")["ranks"].items() if file.startswith(name)
    }
    assert figures
    for file, row in figures.items():
        rank = int("".join(filter(str.isdigit, file.split("/")[1].split("_")[0])))
        for ours, theirs in UNIONS.items():
            assert getattr(got[rank], ours) == pytest.approx(US * row[theirs], rel=1e-6, abs=2), (file, ours)


def test_waits_of_eight_ranks_without_recorded_sizes_on_kernels(opened: Open) -> None:
    analysis = opened("dlrm8")
    figures = expected("expected_dlrm8_collectives.json")
    collectives = sorted(analysis.collectives, key=lambda c: min(rank.start_ns for rank in c.by_rank))
    assert len(collectives) == len(figures["collectives"]) == 8
    for collective, figure in zip(collectives, figures["collectives"], strict=True):
        for rank in collective.by_rank:
            wait = min(figure["wait_us"][str(rank.rank)], figure["own_dur_us"][str(rank.rank)])
            assert rank.arrival_wait_ns == pytest.approx(US * wait, abs=US)
            assert rank.arrival_wait_ns + rank.transfer_ns == rank.end_ns - rank.start_ns
    last: dict[int, int] = defaultdict(int)
    for wait in analysis.waits:
        last[wait.rank] += wait.times_last
    assert dict(last) == {int(rank): row["times_last"] for rank, row in figures["per_rank"].items()}


def test_sizes_of_uneven_exchanges_come_from_the_host(opened: Open) -> None:
    figures = expected("expected_dlrm8_collectives.json")["collectives"]
    collectives = sorted(opened("dlrm8").collectives, key=lambda c: min(rank.start_ns for rank in c.by_rank))
    for collective, figure in zip(collectives, figures, strict=True):
        sent = {rank.rank: rank.send_bytes for rank in collective.by_rank}
        sizes = figure["bytes"]
        assert sent == (
            {int(rank): size for rank, size in sizes.items()}
            if isinstance(sizes, dict)
            else dict.fromkeys(range(8), sizes)
        )


def test_a_shifted_second_host_is_found_and_the_waits_come_out_as_before(opened: Open) -> None:
    analysis = opened("dlrm8_clock", ((0, 1, 2, 3), (4, 5, 6, 7)))
    first, second = analysis.clock
    assert second.offset_ns - first.offset_ns == pytest.approx(1_500_000, abs=20_000)
    assert second.low_ns <= 1_500_000 <= second.high_ns
    got = waits_by_rank(analysis)
    for rank, row in expected("expected_dlrm8_collectives.json")["per_rank"].items():
        assert got[int(rank)] == pytest.approx(US * row["wait_us"], abs=160 * US)


@pytest.mark.parametrize("name", ["moe8_ep4", "moe8_ep4_slowrank5", "moe8_ep8_2host_clock", "moe8_ep4_dropfirst"])
def test_probes_give_back_their_waits_and_transfers(name: str, opened: Open) -> None:
    analysis = opened(f"probes/{name}")
    truth = expected(f"probes/{name}/TRUTH.json")["truth"]
    known = [rank for rank in range(8) if name != "moe8_ep4_dropfirst" or rank >= 4]  # one event of rank 2 is lost
    got, of_truth = waits_by_rank(analysis), defaultdict(float)
    for row in truth:
        of_truth[row["rank"]] += row["wait_us"]
    for rank in known:
        assert got[rank] == pytest.approx(US * of_truth[rank], rel=1e-3, abs=US)
    transfers = sorted(round(row["transfer_us"]) for row in truth if row["rank"] in known)
    measured = [rank.transfer_ns for c in analysis.collectives for rank in c.by_rank if rank.rank in known]
    assert sorted(round(ns / US) for ns in measured) == pytest.approx(transfers, abs=1)


@pytest.mark.parametrize("name", ["moe8_ep4", "moe8_ep4_slowrank5", "moe8_ep8_2host_clock"])
def test_probes_give_back_the_rows_every_rank_received(name: str, opened: Open) -> None:
    load = opened(f"probes/{name}").load
    assert load is not None
    truth = [row for row in expected(f"probes/{name}/TRUTH.json")["truth"] if row["phase"] == "dispatch"]
    for layer in load.layers:
        rows: dict[int, list[int]] = defaultdict(list)
        for row in truth:
            if row["layer"] == layer.layer:
                rows[row["rank"]].append(row["recv_tokens"])
        assert layer.rank_tokens == pytest.approx([sum(rows[rank]) / len(rows[rank]) for rank in load.ranks])


def test_a_lost_first_event_costs_one_collective_and_no_other(opened: Open) -> None:
    analysis = opened("probes/moe8_ep4_dropfirst")
    sizes = sorted(len(collective.by_rank) for collective in analysis.collectives)
    assert sizes == [3, *[4] * (len(sizes) - 3), 8, 8]


def test_two_hosts_of_a_probe_are_told_apart_to_a_microsecond(opened: Open) -> None:
    offsets = expected("probes/moe8_ep8_2host_clock/TRUTH.json")["clock_offsets_us"]
    first, second = sorted(opened("probes/moe8_ep8_2host_clock").clock, key=lambda clock: clock.host)
    assert second.offset_ns - first.offset_ns == pytest.approx(US * (offsets[-1] - offsets[0]), abs=US)
    assert second.low_ns <= second.offset_ns <= second.high_ns


def test_the_slow_rank_is_named_and_no_other(opened: Open) -> None:
    slow = [finding.rank for finding in opened("probes/moe8_ep4_slowrank5").findings if finding.code == "slow-rank"]
    assert slow == [5]
    assert not [finding for finding in opened("probes/moe8_ep4").findings if finding.code == "slow-rank"]


def test_the_rank_of_the_hot_expert_is_named(opened: Open) -> None:
    """Rank 0 holds the hot expert: it receives about twice the rows of the others in every dispatch."""
    load = opened("gloo_moe_ep4").load
    assert load is not None
    assert (load.hottest_rank, load.source) == (0, "splits")
    assert all(interval.hottest_rank == 0 for interval in load.intervals)


def test_the_memory_peak_is_the_events_own_maximum_with_its_phase(opened: Open) -> None:
    """Read here straight from the files: the highest total within the steps, and the operation around it."""
    memory = {row.rank: row for row in opened("gloo_moe_ep4").memory}
    assert sorted(memory) == [0, 1, 2, 3]
    for file in sorted((TRACES / "gloo_moe_ep4").glob("*.json*")):
        content = file.read_bytes()
        document = json.loads(gzip.decompress(content) if file.suffix == ".gz" else content)
        events = document["traceEvents"]
        rank = document["distributedInfo"]["rank"]
        marks = [e for e in events if str(e.get("name")).startswith("ProfilerStep") and e["cat"] == "user_annotation"]
        low, high = min(e["ts"] for e in marks), max(e["ts"] + e["dur"] for e in marks)
        totals = [e for e in events if e.get("name") == "[memory]" and low <= e["ts"] <= high]
        peak = max(totals, key=lambda e: e["args"]["Total Allocated"])
        assert memory[rank].allocated_peak_bytes == peak["args"]["Total Allocated"]
        around = [
            e["name"]
            for e in events
            if e.get("ph") == "X" and e.get("tid") == peak["tid"] and e["ts"] <= peak["ts"] <= e["ts"] + e["dur"]
        ]
        assert memory[rank].peak_phase in around


def test_ranks_that_were_not_recorded_are_named(opened: Open) -> None:
    analysis = opened("sampled_2_of_128")
    assert analysis.world_size == 128
    incomplete = next(finding for finding in analysis.findings if finding.code == "incomplete-input")
    assert len(incomplete.evidence["missing_ranks"]) == 64
    assert any("126 of 128 ranks" in entry.what for entry in analysis.missing)


def test_a_trace_without_device_events_says_what_that_leaves_open(opened: Open) -> None:
    analysis = opened("cpu_only")
    assert {row.rank for row in analysis.ranks} == {34}
    assert any("device events" in entry.what for entry in analysis.missing)


def test_an_old_trace_means_the_same(opened: Open) -> None:
    """Categories named Operator, Kernel and Runtime; memory events without totals."""
    analysis = opened("legacy_resnet50")
    parts = {part: sum(row.parts_ns[part] for row in analysis.ranks) for part in analysis.ranks[0].parts_ns}
    assert max(parts, key=lambda part: parts[part]).startswith("compute.")
    assert analysis.memory == ()


BROKEN = sorted(path.name for path in (TRACES / "malformed").glob("*")) if TRACES.is_dir() else []


@pytest.mark.parametrize("name", BROKEN)
def test_broken_packagings_are_read_and_what_was_lost_is_said(name: str, opened: Open) -> None:
    analysis = opened(f"malformed/{name}")
    spans = {row.unions_ns.total for row in analysis.ranks}
    said = any(finding.code == "incomplete-input" for finding in analysis.findings)
    if name in ("truncated", "duplicate_rank"):
        assert said
        assert 18_749 * US in spans
    else:
        assert spans == {13_009 * US, 18_749 * US}


@pytest.mark.parametrize("name", FOLDERS)
def test_no_path_is_longer_than_the_longest_rank(name: str, opened: Open) -> None:
    analysis = opened(name)
    if analysis.critical_path is not None:
        assert analysis.critical_path.length_ns <= max(rank.window_ns for rank in analysis.ranks) + 1
