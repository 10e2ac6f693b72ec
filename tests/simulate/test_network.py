"""The fluid network: hand-computed exchanges, and the properties that define max-min fairness."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moescope.simulate.network import Tier, bottleneck_ns, exchange_ends, finish_times, max_min_rates

RATE = 10.0
LATENCY = 100.0


def uniform_tier(n: int, batch: int = 1) -> Tier:
    ports = np.full((batch, n), RATE)
    return Tier(np.ones((n, n), dtype=bool), ports, ports, LATENCY)


def test_two_ranks_exchange_once_both_have_arrived():
    sizes = np.array([[[0.0, 5_000.0], [2_000.0, 0.0]]])
    arrivals = np.array([[1_000.0, 1_400.0]])
    ends = exchange_ends(sizes, arrivals, (uniform_tier(2),), local_rate=RATE)
    # Both directions start at 1,400 + 100; the longer one, 5,000 bytes at 10 bytes/ns, ends both ranks' part.
    assert ends.tolist() == [[2_000.0, 2_000.0]]


def test_a_rank_with_nothing_to_exchange_with_the_late_one_leaves_early():
    sizes = np.zeros((1, 3, 3))
    sizes[0, 0, 1] = sizes[0, 1, 0] = 1_000.0
    sizes[0, 0, 2] = 3_000.0
    arrivals = np.array([[0.0, 0.0, 5_000.0]])
    ends = exchange_ends(sizes, arrivals, (uniform_tier(3),), local_rate=RATE)
    assert ends.tolist() == [[5_400.0, 200.0, 5_400.0]]


def test_a_port_freed_by_a_short_transfer_speeds_up_the_long_one():
    sizes = np.zeros((1, 3, 3))
    sizes[0, 0, 2], sizes[0, 1, 2] = 1_000.0, 3_000.0
    finish = finish_times(sizes, np.zeros((1, 3, 3)), np.full((1, 3), RATE), np.full((1, 3), RATE))
    # Both at 5 bytes/ns until 200 ns; then 2,000 bytes are left at 10.
    assert finish[0, 0, 2] == 200.0
    assert finish[0, 1, 2] == 400.0


def test_max_min_is_not_an_equal_split():
    active = np.zeros((1, 3, 3), dtype=bool)
    active[0, 0, 1] = active[0, 0, 2] = active[0, 1, 2] = True
    rates = max_min_rates(active, np.full((1, 3), 6.0), np.array([[6.0, 6.0, 2.0]]))
    # Receiver 2 is the bottleneck: 1 each; sender 0 has 5 left for receiver 1.
    assert rates[0, 0, 2] == rates[0, 1, 2] == 1.0
    assert rates[0, 0, 1] == 5.0


def test_what_a_rank_keeps_takes_time_but_no_port():
    sizes = np.array([[[9_000.0, 0.0], [0.0, 0.0]]])
    ends = exchange_ends(sizes, np.zeros((1, 2)), (uniform_tier(2),), local_rate=3.0)
    assert ends.tolist() == [[LATENCY + 3_000.0, LATENCY]]


def test_tiers_do_not_share_ports():
    same = np.array([[True, True, False], [True, True, False], [False, False, True]])
    fast, slow = np.full((1, 3), 10.0), np.full((1, 3), 1.0)
    sizes = np.zeros((1, 3, 3))
    sizes[0, 0, 1], sizes[0, 0, 2] = 10_000.0, 2_000.0
    tiers = (Tier(same, fast, fast, 0.0), Tier(~same, slow, slow, 0.0))
    assert exchange_ends(sizes, np.zeros((1, 3)), tiers, RATE).tolist() == [[2_000.0, 1_000.0, 2_000.0]]


@st.composite
def traffic(draw):
    """Active transfers and port capacities of 2 to 6 ranks."""
    n = draw(st.integers(2, 6))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    active = rng.random((2, n, n)) < draw(st.floats(0.1, 1.0))
    return active, rng.uniform(0.5, 20.0, (2, n)), rng.uniform(0.5, 20.0, (2, n))


@given(traffic())
def test_rates_fit_the_ports_and_each_transfer_has_a_bottleneck(case):
    active, send, receive = case
    rates = max_min_rates(active, send, receive)
    used_send, used_receive = rates.sum(2), rates.sum(1)
    assert (rates[~active] == 0).all()
    assert (used_send <= send * (1 + 1e-9)).all()
    assert (used_receive <= receive * (1 + 1e-9)).all()
    full_send, full_receive = used_send >= send * (1 - 1e-6), used_receive >= receive * (1 - 1e-6)
    largest = rates * (1 + 1e-6)
    by_send = full_send[:, :, None] & (largest >= rates.max(2, keepdims=True))
    by_receive = full_receive[:, None, :] & (largest >= rates.max(1, keepdims=True))
    assert (by_send | by_receive)[active].all()


@given(traffic(), st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_no_exchange_beats_its_busiest_port_and_none_waits_for_nothing(case, seed):
    active, send, receive = case
    rng = np.random.default_rng(seed)
    sizes = np.where(active, rng.uniform(1.0, 1e4, active.shape), 0.0)
    finish = finish_times(sizes, np.zeros(active.shape), send, receive)
    assert np.isfinite(finish[active]).all()
    assert (finish[~active] == -np.inf).all()
    last = np.where(active, finish, 0.0).max((1, 2))
    tier = Tier(np.ones(active.shape[1:], dtype=bool), send, receive, 0.0)
    assert (last >= bottleneck_ns(sizes, tier) * (1 - 1e-9)).all()
    alone = sizes / np.minimum(send[:, :, None], receive[:, None, :])
    assert (np.where(active, finish - alone, 0.0) >= -1e-6).all()
    assert (last <= alone.sum((1, 2)) + 1e-6).all()


@given(traffic(), st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_renaming_ranks_renames_the_ends(case, seed):
    active, send, receive = case
    rng = np.random.default_rng(seed)
    n = active.shape[1]
    sizes, arrivals = np.where(active, rng.uniform(1.0, 1e4, active.shape), 0.0), rng.uniform(0, 1e3, (2, n))
    order = rng.permutation(n)
    pairs = np.ones((n, n), dtype=bool)
    plain = exchange_ends(sizes, arrivals, (Tier(pairs, send, receive, LATENCY),), RATE)
    renamed = exchange_ends(
        sizes[:, order][:, :, order],
        arrivals[:, order],
        (Tier(pairs, send[:, order], receive[:, order], LATENCY),),
        RATE,
    )
    assert renamed == pytest.approx(plain[:, order], rel=1e-9)


@given(traffic(), st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_no_rank_leaves_before_one_with_bytes_for_it_has_come(case, seed):
    active, send, receive = case
    rng = np.random.default_rng(seed)
    sizes = np.where(active, rng.uniform(1.0, 1e4, active.shape), 0.0)
    arrivals = rng.uniform(0, 1e3, send.shape)
    tier = Tier(np.ones(active.shape[1:], dtype=bool), send, receive, LATENCY)
    ends = exchange_ends(sizes, arrivals, (tier,), RATE)
    sources = np.where(sizes > 0, arrivals[:, :, None], -np.inf).max(1)
    assert (ends >= np.maximum(sources, arrivals)).all()


def test_merging_ends_changes_little_and_only_makes_it_longer_than_the_bottleneck():
    rng = np.random.default_rng(3)
    sizes = rng.uniform(0.5, 1.5, (4, 8, 8)) * 1e6
    arrivals = rng.uniform(0, 1e4, (4, 8))
    exact = exchange_ends(sizes, arrivals, (uniform_tier(8, 4),), RATE)
    merged = exchange_ends(sizes, arrivals, (uniform_tier(8, 4),), RATE, resolution=0.005)
    assert merged == pytest.approx(exact, rel=0.02)
