"""Every rule speaks on one side of its threshold and keeps silent on the other; the verdict is in order of gravity."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace

import polars as pl
import pytest
from finding_inputs import RANKS, STEP_NS, inputs

from moescope.align import Contradiction, HostClock, Refusal
from moescope.attribution.memory import MemoryProfile
from moescope.findings import FINDING_CODES, Finding, Inputs, findings
from moescope.findings.rules_clock import as_hosts_option


def found(given: Inputs) -> dict[str, Finding]:
    return {finding.code: finding for finding in findings(given)}


def test_a_run_that_loses_nothing_is_balanced() -> None:
    (verdict,) = findings(inputs())
    assert (verdict.code, verdict.severity, verdict.confidence) == ("balanced", "good", "high")


def test_one_rank_alone_is_not_called_balanced() -> None:
    assert set(found(inputs(ranks=(0,)))) == {"incomplete-input"}


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        ("expert_load", "load-imbalance"),
        ("slow_rank", "slow-rank"),
        ("host", "host-bound"),
        ("slow_network", "slow-network"),
        ("volume_imbalance", "volume-imbalance"),
    ],
)
def test_a_cause_is_noticed_from_two_percent_and_grave_from_ten(cause: str, code: str) -> None:
    def verdict(cost: float) -> Finding | None:
        return found(inputs(causes=[(cause, 2, 5, cost)])).get(code)

    assert verdict(0.0199 * STEP_NS) is None
    low, high = verdict(0.0201 * STEP_NS), verdict(0.1001 * STEP_NS)
    assert low is not None
    assert high is not None
    assert (low.severity, high.severity) == ("warning", "critical")
    assert (high.rank, high.cost_ns_per_step) == (2, 100_100)
    assert high.share_of_step == pytest.approx(0.1001)


@pytest.mark.parametrize("cause", ["expert_load", "slow_rank", "host", "slow_network", "volume_imbalance"])
def test_whoever_loses_something_is_not_balanced(cause: str) -> None:
    assert "balanced" not in found(inputs(causes=[(cause, 2, 5, 0.03 * STEP_NS)]))


def test_of_two_ranks_the_slow_one_is_named() -> None:
    causes = [("slow_rank", 1, 0, 90_000.0)]
    assert found(inputs(causes=causes, ranks=(0, 1), world_size=2))["slow-rank"].rank == 1


def test_costs_of_layers_add_up_and_the_worst_layer_is_named() -> None:
    causes = [("slow_rank", 1, 3, 15_000.0), ("slow_rank", 1, 8, 40_000.0), ("slow_rank", 1, None, 5_000.0)]
    finding = found(inputs(causes=causes))["slow-rank"]
    assert (finding.rank, finding.layer, finding.cost_ns_per_step) == (1, 8, 60_000)


def test_a_rank_that_is_as_slow_as_the_others_is_not_singled_out() -> None:
    even = [("slow_rank", rank, 0, 30_000.0) for rank in RANKS]
    assert "slow-rank" not in found(inputs(causes=even))
    assert [
        f.rank for f in findings(inputs(causes=[*even, ("slow_rank", 3, 1, 40_000.0)])) if f.code == "slow-rank"
    ] == [3]


def test_two_slow_ranks_are_two_findings_the_slower_first() -> None:
    causes = [("slow_rank", 0, 0, 30_000.0), ("slow_rank", 3, 0, 90_000.0)]
    assert [f.rank for f in findings(inputs(causes=causes)) if f.code == "slow-rank"] == [3, 0]


def charged(steps: Mapping[int, float], cause: str = "slow_rank") -> Inputs:
    """Rank 1 costs the step 60 us by ``cause``, by step as given."""
    given = inputs(causes=[(cause, 1, 0, 60_000.0)])
    rows = [(step, cause, 1, cost) for step, cost in steps.items()]
    charges = pl.DataFrame(rows, ["step", "cause", "culprit", "cost_ns"], orient="row")
    return replace(given, attribution=replace(given.attribution, charges=charges))


def test_what_happened_in_one_step_alone_is_said_and_is_less_certain() -> None:
    once = found(charged({4: 50.0, 5: 2.0, 6: 6.0, 7: 2.0}))["slow-rank"]
    assert "83% of it in step 4 alone" in once.claim
    assert once.confidence == "medium"
    always = found(charged({4: 48.0, 5: 4.0, 6: 4.0, 7: 4.0}))["slow-rank"]
    assert "alone" not in always.claim
    assert (always.confidence, always.evidence["heaviest_step"]) == ("high", 4)


@pytest.mark.parametrize("cause", ["slow_rank", "host"])
def test_a_run_on_cpus_is_not_told_of_devices(cause: str) -> None:
    given = charged({4: 60.0}, cause)
    parts = {"compute.other": 700_000, "idle.host_launch": 300_000}
    idle = inputs(parts=parts).attribution.parts
    timelines = dict.fromkeys(RANKS, SimpleNamespace(on_gpu=False))
    on_cpu = replace(given, attribution=replace(given.attribution, timelines=timelines, parts=idle))
    texts = [f"{f.claim} {f.advice}" for f in findings(on_cpu) if f.code in ("slow-rank", "host-bound")]
    assert texts
    assert not [text for text in texts if re.search("device|CUDA|node", text, re.IGNORECASE)]


def test_ranks_that_were_not_recorded_may_be_the_late_ones() -> None:
    assert "balanced" in found(inputs())
    missing = found(inputs(ranks=(0, 1, 2)))
    assert set(missing) == {"incomplete-input"}
    assert missing["incomplete-input"].rank == 3
    assert found(inputs(ranks=(0, 1)))["incomplete-input"].rank is None  # two are missing


def test_collectives_that_lack_a_recorded_rank_are_counted_and_its_trace_named() -> None:
    given = inputs()
    rows = [(0, [0, 1], 0), (0, [0, 1], 1), (1, [0, 1], 0), (2, [0, 9], 0)]  # rank 9 has no trace
    lossy = pl.DataFrame(rows, ["instance", "members", "rank"], orient="row").with_columns(
        complete=pl.col("instance") == 0, kind=pl.lit("all_reduce"), tier=pl.lit("within host"), arrival_wait_ns=0
    )
    told = replace(given, alignment=replace(given.alignment, collectives=lossy))
    assert told.lost_parts() == {1: 1}
    messages = replace(told.alignment, collectives=lossy.with_columns(kind=pl.lit("p2p")))
    assert replace(told, alignment=messages).lost_parts() == {}
    verdict = found(told)
    assert "1 collectives lack the part of rank 1" in verdict["incomplete-input"].claim
    assert verdict["balanced"].confidence == "medium"
    assert "not judged without a baseline" in verdict["balanced"].advice


def test_imbalance_that_chance_alone_would_give_is_no_finding() -> None:
    causes = [("expert_load", 1, 0, 50_000.0)]
    assert "load-imbalance" not in found(inputs(causes=causes, violations=[(0.14, 1)], floor=0.1))
    assert "load-imbalance" in found(inputs(causes=causes, violations=[(0.16, 1)], floor=0.1))


def test_waits_of_the_pipeline_are_an_upper_bound_and_no_ranks_fault() -> None:
    def staged(cost: float, stages: tuple[int, ...]) -> dict[str, Finding]:
        given = inputs(causes=[("pipeline", None, None, cost)])
        rows = pl.DataFrame({"rank": range(len(stages)), "stage": stages}).with_columns(clock_uncertainty_ns=0)
        return found(replace(given, alignment=replace(given.alignment, collectives=rows)))

    assert "pipeline-bubbles" not in staged(0.0199 * STEP_NS, (0, 0, 1, 1))
    told = staged(0.0201 * STEP_NS, (0, 0, 1, 1))
    assert told["pipeline-bubbles"].evidence["is_upper_bound"]
    assert "cannot be told" not in told["pipeline-bubbles"].claim
    assert told["balanced"].claim.startswith("Ranks of each pipeline stage")
    assert "cannot be told" in staged(0.03 * STEP_NS, (0, 1, 2, 3))["pipeline-bubbles"].claim
    assert "balanced" not in staged(0.03 * STEP_NS, (0, 1, 2, 3))


def test_a_stages_memory_is_held_against_that_stages_mean() -> None:
    given = inputs(memory={rank: memory(size, capacity=100) for rank, size in enumerate((70, 70, 10, 25))})
    rows = pl.DataFrame({"rank": range(4), "stage": [0, 0, 1, 1]})
    staged = replace(given, alignment=replace(given.alignment, collectives=rows))
    assert (found(given)["memory-peak"].rank, found(staged)["memory-peak"].rank) == (0, 3)


def test_a_hottest_rank_is_named_only_where_it_stands_out() -> None:
    one = found(inputs(causes=[("expert_load", 1, 0, 60_000.0), ("expert_load", 2, 0, 20_000.0)]))["load-imbalance"]
    assert (one.rank, one.cost_ns_per_step) == (1, 80_000)
    many = found(inputs(causes=[("expert_load", rank, 0, 20_000.0) for rank in RANKS]))["load-imbalance"]
    assert many.rank is None
    assert "changes between layers" in many.claim


def test_load_says_how_often_the_hottest_rank_was_hottest() -> None:
    violations = [(1.0, 1), (1.0, 1), (1.0, 3), (1.0, 1)]
    finding = found(inputs(causes=[("expert_load", 1, 0, 50_000.0)], violations=violations))["load-imbalance"]
    assert finding.evidence["share_of_intervals_where_hottest"] == 0.75
    assert finding.evidence["maxvio_rank"] == 1.0
    assert "2.00 times the mean load" in finding.claim


def test_slow_links_without_a_culprit_name_none() -> None:
    finding = found(inputs(causes=[("slow_network", None, 2, 50_000.0)]))["slow-network"]
    assert (finding.rank, finding.confidence) == (None, "medium")


def test_exposed_transfer_from_a_tenth_of_the_step() -> None:
    quiet = {"compute.other": 901_000, "comm.all_to_all.transfer": 60_000, "comm.reduction.transfer": 39_000}
    assert "exposed-communication" not in found(inputs(parts=quiet))
    loud = {"compute.other": 899_000, "comm.all_to_all.transfer": 60_000, "comm.reduction.transfer": 41_000}
    finding = found(inputs(parts=loud))["exposed-communication"]
    assert finding.cost_ns_per_step == 101_000
    assert finding.evidence["transfer_by_kind_ns"] == {"all_to_all": 60_000, "reduction": 41_000, "other": 0}
    assert "all-to-all" in finding.claim


def test_upper_bounds_are_no_loss_between_ranks() -> None:
    """Exposed transfer can be had back only by overlap: ranks are balanced all the same."""
    parts = {"compute.other": 800_000, "comm.all_to_all.transfer": 200_000}
    assert [f.code for f in findings(inputs(parts=parts))] == ["exposed-communication", "balanced"]


def test_devices_that_wait_for_hosts_from_fifteen_percent() -> None:
    quiet = {"compute.other": 851_000, "idle.host_launch": 100_000, "idle.sync": 49_000}
    assert "host-bound" not in found(inputs(parts=quiet))
    loud = {"compute.other": 849_000, "idle.host_launch": 100_000, "idle.sync": 51_000, "idle.gap": 0}
    assert found(inputs(parts=loud))["host-bound"].cost_ns_per_step == 151_000
    gaps = {"compute.other": 500_000, "idle.gap": 300_000, "idle.dependency": 200_000}
    assert "host-bound" not in found(inputs(parts=gaps))


def test_devices_that_idle_with_work_launched_from_fifteen_percent() -> None:
    quiet = {"compute.other": 851_000, "idle.gap": 149_000}
    assert "device-idle" not in found(inputs(parts=quiet))
    loud = {"compute.other": 800_000, "idle.gap": 151_000, "idle.host_launch": 49_000}
    finding = found(inputs(parts=loud))["device-idle"]
    assert (finding.cost_ns_per_step, finding.evidence["is_upper_bound"]) == (151_000, True)


def test_hosts_that_are_late_in_turn_are_one_loss_of_all() -> None:
    """Each of four ranks makes the others wait 10 us (30 us charged): 120 us over four ranks, and 50 us idle."""
    parts = {"compute.other": 950_000, "idle.host_launch": 30_000, "idle.outside": 20_000}
    turns = [("host", rank, 0, 10_000.0) for rank in (0, 1, 2, 3)]
    finding = found(inputs(parts=parts, causes=turns))["host-bound"]
    assert (finding.rank, finding.cost_ns_per_step) == (None, 80_000)
    assert finding.evidence["waiting_for_late_hosts_ns"] == 30_000
    single = found(inputs(parts=parts, causes=[("host", 3, 0, 40_000.0)]))["host-bound"]
    assert (single.rank, single.cost_ns_per_step) == (3, 40_000)


def test_operations_behind_idle_time_are_in_the_evidence() -> None:
    call = "cudaStreamSynchronize"
    rows = [
        (0, "sync", "aten::item", call, 90_000.0),
        (1, "sync", "aten::item", call, 70_000.0),
        (0, "gap", "aten::mm", "launch latency", 500_000.0),
    ]
    schema = ["rank", "kind", "operation", "detail", "ns_per_step"]
    given = inputs(parts={"compute.other": 800_000, "idle.sync": 200_000})
    given = replace(given, idle_causes=pl.DataFrame(rows, schema=schema, orient="row"))
    finding = next(f for f in findings(given) if f.code == "host-bound")
    assert finding.evidence["operations_ns"] == {"sync aten::item (cudaStreamSynchronize)": 80_000}


def memory(allocated: int, *, reserved: int | None = None, capacity: int | None = None) -> MemoryProfile:
    return MemoryProfile("GPU", allocated, reserved, capacity, 0, "experts", {}, ())


def test_memory_near_full_or_far_above_the_other_ranks() -> None:
    def verdict(*peaks: MemoryProfile) -> str | None:
        finding = found(inputs(memory=dict(enumerate(peaks)))).get("memory-peak")
        return finding.severity if finding else None

    assert verdict(memory(50, reserved=89, capacity=100), memory(50)) is None
    assert verdict(memory(50, reserved=90, capacity=100), memory(50)) == "warning"
    assert verdict(memory(129), memory(71)) is None  # 1.29 times the mean
    assert verdict(memory(131), memory(69)) == "info"
    assert verdict(memory(131)) is None  # nobody to compare with
    assert found(inputs(memory={0: memory(100), 2: memory(300)}))["memory-peak"].rank == 2


def clock(
    *, half_bracket: int = 0, method: str = "bracket midpoint", anchors: int = 9, contradictory: bool = False
) -> HostClock:
    return HostClock("b", (2, 3), 0.0, 0.0, 0, -half_bracket, half_bracket, 0.0, method, anchors, contradictory)


def test_a_clock_is_uncertain_where_its_bracket_rivals_the_waits() -> None:
    def speaks(half_bracket: int, wait: int) -> bool:
        return "clock-uncertain" in found(inputs(clocks=[clock(half_bracket=half_bracket)], waits_across_hosts=[wait]))

    assert speaks(20_000, 100_000)
    assert not speaks(9_000, 100_000)  # less than a tenth of the typical wait
    assert not speaks(900, 1_000)  # less than a thousandth of the step


def test_a_clock_that_nothing_ties_or_that_contradicts_itself_is_uncertain() -> None:
    untied = clock(method="no anchors: assumed equal", anchors=0)
    assert "no collective spans it" in found(inputs(clocks=[untied]))["clock-uncertain"].claim
    assert "clock-uncertain" in found(inputs(clocks=[clock(contradictory=True)]))


def test_ranks_of_one_host_that_cannot_share_a_clock_are_the_gravest_finding() -> None:
    alike = ((0, 2), (1, 3))
    told = replace(
        inputs(), alignment=replace(inputs().alignment, contradictions=(Contradiction("a", 3, 4, 10_000, alike),))
    )
    first = findings(told)[0]
    assert (first.code, first.severity) == ("clock-uncertain", "critical")
    assert "--hosts 0+2,1+3" in first.advice
    assert "3 of 4 collectives" in first.claim


def test_ranks_are_grouped_as_the_option_takes_them() -> None:
    assert as_hosts_option([(0, 1, 2, 3), (4, 5, 6, 7)]) == "0-3,4-7"
    assert as_hosts_option([(0, 1, 8, 9), (2,)]) == "0-1+8-9,2"


def test_a_clock_tied_through_a_third_host_or_by_measurement_is_as_good_as_its_bracket() -> None:
    assert "clock-uncertain" not in found(inputs(clocks=[clock(half_bracket=500, anchors=0)]))


def test_one_clock_is_certain() -> None:
    assert "clock-uncertain" not in found(inputs(clocks=[clock(method="single host", anchors=0)]))


def test_what_the_input_lacks_is_said() -> None:
    finding = found(inputs(ranks=(0, 1, 3)))["incomplete-input"]
    assert (finding.rank, finding.severity) == (2, "warning")
    assert "1 of 4 ranks are missing (2)" in finding.claim
    assert finding.evidence["missing_ranks"] == [2]
    problems = found(inputs(problems=["rank1.json: cut short"]))["incomplete-input"]
    assert "rank1.json: cut short" in problems.claim
    refused = found(inputs(refusals=[Refusal("ep 0-1", "nothing agrees", 8)]))["incomplete-input"]
    assert "ep 0-1: nothing agrees" in refused.claim
    assert "3 collectives have no counterpart" in found(inputs(num_unmatched=3))["incomplete-input"].claim
    assert "incomplete-input" not in found(inputs())


def test_one_trace_out_of_many_is_a_sample_not_a_fault() -> None:
    assert found(inputs(ranks=(0,), world_size=128))["incomplete-input"].severity == "info"


def test_confidence_falls_with_what_is_missing_and_with_the_clocks() -> None:
    causes = [("slow_rank", 2, 0, 50_000.0)]
    assert found(inputs(causes=causes))["slow-rank"].confidence == "high"
    assert found(inputs(causes=causes, num_steps=1))["slow-rank"].confidence == "medium"
    assert found(inputs(causes=causes, world_size=8))["slow-rank"].confidence == "medium"
    loose = inputs(causes=causes, clocks=[clock(half_bracket=30_000)])
    assert found(loose)["slow-rank"].confidence == "low"


def test_gravest_first_then_what_a_fix_recovers_then_upper_bounds() -> None:
    parts = {"compute.other": 500_000, "comm.all_to_all.transfer": 300_000, "idle.host_launch": 200_000}
    causes = [("slow_rank", 2, 0, 30_000.0), ("expert_load", 1, 0, 150_000.0), ("host", 3, 0, 60_000.0)]
    verdict = findings(inputs(parts=parts, causes=causes, ranks=(0, 1, 2, 3), world_size=5))
    assert [(f.code, f.severity) for f in verdict] == [
        ("load-imbalance", "critical"),
        ("host-bound", "warning"),  # 60 us, recoverable
        ("slow-rank", "warning"),  # 30 us
        ("incomplete-input", "warning"),  # no cost, but no upper bound either
        ("exposed-communication", "warning"),  # 300 us at most
        ("host-bound", "warning"),  # 200 us at most
    ]


def test_numbers_of_simulated_runs_are_called_simulated() -> None:
    causes = [("slow_rank", 2, 0, 50_000.0)]
    assert found(inputs(causes=causes, basis="simulated"))["slow-rank"].basis == "simulated"
    assert found(inputs(causes=causes, basis="unknown"))["slow-rank"].basis == "measured"


def test_every_finding_is_complete() -> None:
    parts = {"compute.other": 500_000, "comm.all_to_all.transfer": 300_000, "idle.host_launch": 200_000}
    names = ["slow_rank", "expert_load", "host", "slow_network", "volume_imbalance"]
    given = inputs(
        parts=parts,
        causes=[(name, 2, 0, 50_000.0) for name in names],
        ranks=(0, 1, 2),
        clocks=[clock(contradictory=True)],
        memory={0: memory(95, capacity=100)},
    )
    verdict = findings(given)
    assert {f.code for f in verdict} == {
        "slow-rank", "load-imbalance", "host-bound", "slow-network", "volume-imbalance", "exposed-communication",
        "incomplete-input", "clock-uncertain", "memory-peak",
    }  # fmt: skip
    for finding in verdict:
        assert finding.code in FINDING_CODES
        assert finding.claim.endswith(".")
        assert finding.advice.endswith(".")
        assert finding.evidence["page"]
        assert finding.share_of_step == pytest.approx(finding.cost_ns_per_step / STEP_NS)


def test_waits_for_longer_transfers_accuse_no_link_that_was_not_compared() -> None:
    given = inputs(causes=[("slow_network", 1, None, 200_000.0)])
    unseen = given.attribution.causes.with_columns(transfer_ns=pl.lit(0.0))
    assert "slow-network" in found(given)
    assert "slow-network" not in found(replace(given, attribution=replace(given.attribution, causes=unseen)))


def test_exposed_transfer_of_some_ranks_may_be_waiting_for_the_others_and_says_so() -> None:
    parts = {"comm.all_to_all.transfer": STEP_NS}
    assert "waiting for ranks" not in found(inputs(parts=parts))["exposed-communication"].claim
    partial = inputs(parts=parts, ranks=(0, 1), world_size=4)
    assert "waiting for ranks whose traces are missing" in found(partial)["exposed-communication"].claim
