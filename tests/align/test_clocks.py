"""One clock per host: recovered offsets and drifts, brackets that hold the truth, honesty where nothing tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pytest
from tiny_rows import reduction, table

from moescope.align.clocks import HostClock, host_clocks
from moescope.align.measured import measured_bounds

T0 = 1_700_000_000_000_000_000
MS, US = 1_000_000, 1_000


@dataclass
class Hosts:
    """A cluster's hosts: local = true + offset + drift * (true - T0)."""

    offset_ns: list[float]
    drift: list[float]
    ranks_per_host: int = 8

    @property
    def of_rank(self) -> dict[int, str]:
        return {rank: f"host{rank // self.ranks_per_host}" for rank in range(len(self.offset_ns) * self.ranks_per_host)}

    def local(self, host: int, true_ns: np.ndarray | int) -> Any:
        """Local reading at true times given as ns after T0."""
        return T0 + np.rint(true_ns + self.offset_ns[host] + self.drift[host] * true_ns).astype(np.int64)


def observed(hosts: Hosts, starts: np.ndarray, ends: np.ndarray, members: list[int] | None = None) -> pl.DataFrame:
    """Matched all-reduces from true times [instances, ranks]."""
    ranks = members or sorted(hosts.of_rank)
    rows = []
    for instance in range(len(starts)):
        begun, over = ({}, {})
        for column, rank in enumerate(ranks):
            host = rank // hosts.ranks_per_host
            begun[rank] = int(hosts.local(host, starts[instance, column]))
            over[rank] = int(hosts.local(host, ends[instance, column]))
        rows += [row | {"sequence": instance} for row in reduction(begun, over, size=4096)]
    return table(rows).with_columns(instance=pl.Series([row["sequence"] for row in rows], dtype=pl.Int64))


def jittered(seed: int, hosts: Hosts, gloo: bool = False, num: int = 200) -> pl.DataFrame:
    """Small all-reduces spread over two seconds: arrivals exp(3 ms), ends as on a GPU, or as late as gloo's."""
    draw = np.random.default_rng(seed)
    shape = (num, len(hosts.of_rank))
    starts = np.sort(draw.uniform(0, 2e9, num))[:, None] + draw.exponential(3 * MS, shape)
    late = np.abs(draw.normal(0, 3 * US, shape)) + draw.exponential(30 * US, shape) * (draw.random(shape) < 0.1)
    if gloo:
        late = draw.exponential(2 * MS, shape[1]) + draw.exponential(5 * MS, shape)
    return observed(hosts, starts, starts.max(axis=1, keepdims=True) + 200 * US + late)


def error_ns(clock: HostClock, hosts: Hosts, true_ns: np.ndarray) -> np.ndarray:
    """How far this host's readings land from the reference's at the same true times."""
    host, reference = int(clock.host.removeprefix("host")), 0
    common = clock.to_common(pl.Series(hosts.local(host, true_ns))).to_numpy()
    return common - hosts.local(reference, true_ns)


def true_offset(clock: HostClock, hosts: Hosts) -> float:
    """The offset against the reference at the clock's origin."""
    host = int(clock.host.removeprefix("host"))
    at = clock.origin_ns - T0 - hosts.offset_ns[host]
    return (hosts.offset_ns[host] - hosts.offset_ns[0]) + (hosts.drift[host] - hosts.drift[0]) * at


@pytest.mark.parametrize("seed", range(2))
def test_offsets_and_drifts_of_four_hosts_are_recovered_to_a_few_microseconds(seed: int) -> None:
    draw = np.random.default_rng(100 + seed)
    hosts = Hosts(list(draw.uniform(-50 * MS, 50 * MS, 4)), list(draw.uniform(-30e-6, 30e-6, 4)))
    clocks = host_clocks(jittered(seed, hosts), hosts.of_rank)
    assert [clock.host for clock in clocks] == ["host0", "host1", "host2", "host3"]
    assert clocks[0].method == "reference"
    for clock in clocks[1:]:
        assert clock.method == "first leavers with drift"
        assert np.abs(error_ns(clock, hosts, np.linspace(0, 2e9, 21))).max() <= 10 * US
        assert clock.low_ns - US <= true_offset(clock, hosts) <= clock.high_ns + US
        assert clock.drift == pytest.approx(hosts.drift[clocks.index(clock)] - hosts.drift[0], abs=1e-6)


def test_twenty_anchors_without_drift_are_enough() -> None:
    hosts = Hosts([0, 31 * MS], [0.0, 0.0])
    clock = host_clocks(jittered(5, hosts, num=20), hosts.of_rank)[1]
    assert abs(clock.offset_ns - 31 * MS) <= 10 * US
    assert clock.low_ns <= 31 * MS <= clock.high_ns
    assert clock.drift == 0.0


@pytest.mark.parametrize("seed", range(2))
def test_ends_as_noisy_as_gloos_give_way_to_the_middle_of_the_bracket(seed: int) -> None:
    """Each rank leaves milliseconds late in its own way, so ends tell nothing; the bracket still holds the truth."""
    hosts = Hosts([0, -17 * MS, 23 * MS], [0.0, 0.0, 0.0])
    for clock, truth in zip(host_clocks(jittered(seed, hosts, gloo=True), hosts.of_rank), hosts.offset_ns, strict=True):
        assert clock.low_ns <= truth <= clock.high_ns
        assert abs(clock.offset_ns - truth) <= clock.uncertainty_ns
        if clock.host != "host0":
            assert (clock.method, clock.drift) == ("bracket midpoint", 0.0)
            assert clock.uncertainty_ns <= 10 * MS


def test_bracket_by_hand() -> None:
    """Host 1's clock is 100 ns ahead; nobody ends a reduction before everybody has begun it."""
    hosts = Hosts([0, 100], [0, 0], ranks_per_host=1)
    rows = observed(hosts, np.array([[0, 30], [210, 200]]), np.array([[50, 50], [240, 240]]))
    clock = host_clocks(rows, hosts.of_rank)[1]
    # first: offset <= end on 1 - start on 0 = 150 - 0; offset >= start on 1 - end on 0 = 130 - 50 = 80
    # second: offset <= 340 - 210 = 130; offset >= 300 - 240 = 60
    # and 1 ns each way for rounding, since the clocks may drift by some millionths between the two
    assert (clock.low_ns, clock.high_ns) == (79, 131)
    assert clock.offset_ns == 100


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("num", [2, 4, 6, 9])
def test_few_anchors_over_a_long_time_do_not_hide_the_drift(seed: int, num: int) -> None:
    """Too few for a fit of the drift: the bracket allows for every drift that the collectives do."""
    draw = np.random.default_rng(seed)
    hosts = Hosts([0, *draw.uniform(-50 * MS, 50 * MS, 2)], [0.0, *draw.uniform(-30e-6, 30e-6, 2)])
    for clock in host_clocks(jittered(seed, hosts, num=num), hosts.of_rank)[1:]:
        assert clock.low_ns - US <= true_offset(clock, hosts) <= clock.high_ns + US
        assert not clock.contradictory


def test_one_host_needs_no_alignment() -> None:
    hosts = Hosts([5 * MS], [1e-5])
    (clock,) = host_clocks(jittered(1, hosts, num=5), hosts.of_rank)
    assert (clock.method, clock.offset_ns, clock.drift, clock.uncertainty_ns) == ("single host", 0.0, 0.0, 0)
    times = pl.Series([T0, T0 + 1, T0 + 123_456_789])
    assert clock.to_common(times).to_list() == times.to_list()


def test_hosts_that_share_nothing_are_said_to_be_assumed_equal() -> None:
    rows = table([*reduction({0: 0, 1: 1}, 9), *reduction({2: 0, 3: 1}, 9)])
    rows = rows.with_columns(instance=pl.Series([0, 0, 1, 1]))
    clock = host_clocks(rows, {0: "a", 1: "a", 2: "b", 3: "b"})[1]
    assert (clock.offset_ns, clock.num_anchors) == (0.0, 0)
    assert "no anchors" in clock.method


def test_a_host_is_tied_to_the_reference_through_a_third() -> None:
    """Hosts 0 and 2 share no collective; each shares some with host 1."""
    hosts = Hosts([0, 4 * MS, 9 * MS], [0, 0, 0], ranks_per_host=1)
    draw = np.random.default_rng(3)
    parts = []
    for turn, members in enumerate(([0, 1], [1, 2])):
        starts = 1e6 * np.arange(30)[:, None] + draw.exponential(20 * US, (30, 2))
        ends = np.repeat(starts.max(axis=1, keepdims=True) + 10 * US, 2, axis=1)
        rows = observed(hosts, starts, ends, members)
        parts.append(rows.with_columns(instance=pl.col("instance") + 100 * turn))
    clock = host_clocks(pl.concat(parts), hosts.of_rank)[2]
    assert clock.low_ns <= 9 * MS <= clock.high_ns
    assert abs(clock.offset_ns - 9 * MS) <= clock.uncertainty_ns <= 100 * US


def test_times_that_contradict_causality_are_reported() -> None:
    """The clock was set back between two reductions: no single offset explains both."""
    rows = table([*reduction({0: 0, 1: 1000}, {0: 50, 1: 1050}), *reduction({0: 100, 1: -900}, {0: 150, 1: -850})])
    clock = host_clocks(rows.with_columns(instance=pl.Series([0, 0, 1, 1])), {0: "a", 1: "b"})[1]
    assert clock.contradictory
    assert "contradict" in clock.method


def test_exchanges_with_an_empty_pair_tie_no_clocks() -> None:
    """A rank that receives nothing may end before the other has begun."""
    rows = table(reduction({0: 0, 1: 400}, {0: 10, 1: 410})).with_columns(
        kind=pl.lit("all_to_all"), in_splits=pl.Series([[1, 0], [0, 1]]), instance=pl.Series([0, 0])
    )
    assert host_clocks(rows, {0: "a", 1: "b"})[1].num_anchors == 0


def test_a_rank_that_was_not_recorded_loosens_no_clock_of_the_others() -> None:
    """One of 16 ranks is missing, so every reduction of the job is incomplete."""
    hosts = Hosts([0, 31 * MS], [0.0, 10e-6])
    rows = jittered(7, hosts).filter(pl.col("rank") != 3)
    clock = host_clocks(rows, {rank: host for rank, host in hosts.of_rank.items() if rank != 3})
    late = next(entry for entry in clock if entry.host == "host0")  # the smaller host now
    assert late.method == "first leavers with drift"
    assert late.low_ns - US <= late.offset_ns <= late.high_ns + US
    times = np.linspace(0, 2e9, 21)
    common = late.to_common(pl.Series(hosts.local(0, times))).to_numpy()
    assert np.abs(common - hosts.local(1, times)).max() <= 10 * US


def test_the_host_with_most_ranks_is_the_reference() -> None:
    rows = table(reduction({0: 0, 1: 0, 2: 0}, 9)).with_columns(instance=pl.Series([0, 0, 0]))
    clocks = host_clocks(rows, {0: "small", 1: "large", 2: "large"})
    assert [(clock.host, clock.ranks) for clock in clocks] == [("large", (1, 2)), ("small", (0,))]


def test_common_time_is_exact_to_the_nanosecond_far_from_zero() -> None:
    clock = HostClock("b", (1,), -7.0, 0.0, T0, -9, -5, 0.0, "first leavers", 3)
    assert clock.to_common(pl.Series([T0 + 1, T0 + 10**12 + 1])).to_list() == [T0 + 8, T0 + 10**12 + 8]
    drifting = HostClock("b", (1,), 100.0, 10e-6, T0, 0, 200, 0.0, "first leavers with drift", 9)
    assert drifting.to_common(pl.Series([T0 + 10**9])).to_list() == [T0 + 10**9 - 100 - 10_000]


CLOCK = {
    "rank": pl.Int64,
    "peer": pl.Int64,
    "measured_at_ns": pl.Int64,
    "offset_ns": pl.Int64,
    "round_trip_ns": pl.Int64,
}


def bounds(rows: list[tuple[int, int, int, int, int]], at_ns: int = 500) -> list[tuple[int, int, float, float]]:
    found = measured_bounds(pl.DataFrame(rows, CLOCK, orient="row"), {0: "a", 1: "a", 2: "b"}, ["a", "b"], at_ns)
    return [(bound.of, bound.to, bound.low_ns, bound.high_ns) for bound in found]


def test_measured_offsets_bound_by_half_a_round_trip_and_are_interpolated() -> None:
    assert bounds([(0, 2, 0, 1000, 40), (0, 2, 1000, 1200, 60)]) == [(0, 1, 1100 - 30, 1100 + 30)]


def test_a_single_measurement_bounds_the_less_the_further_it_is_away() -> None:
    ((_, _, low, high),) = bounds([(0, 2, 500 - 10**6, 1000, 40)])
    assert (low, high) == (1000 - 20 - 50, 1000 + 20 + 50)


def test_measurements_within_a_host_or_of_unknown_ranks_tell_nothing() -> None:
    assert bounds([(0, 1, 500, 3, 2), (0, 9, 500, 3, 2)]) == []


def test_a_measured_offset_serves_where_no_collective_does() -> None:
    rows = table(reduction({0: 0, 1: 1}, 9)).with_columns(instance=pl.Series([0, 0]))
    clock = pl.DataFrame([(0, 2, 0, 5000, 40)], CLOCK, orient="row")
    host = host_clocks(rows, {0: "a", 1: "a", 2: "b"}, clock)[1]
    assert (host.low_ns, host.high_ns, host.offset_ns) == (4980, 5020, 5000)
