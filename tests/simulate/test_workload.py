"""Routing: every selection goes somewhere, once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moescope.errors import MoescopeError
from moescope.simulate import parse_fault
from moescope.simulate.config import MOST_TOKENS, SimConfig
from moescope.simulate.workload import at_most_once, route

from .conftest import tiny


def test_rows_are_neither_made_nor_lost():
    config = tiny()
    drawn = route(config, (), 10, 0, 1)
    selections = config.tokens * config.model.top_k
    assert (drawn.counts.sum(1) == selections).all()
    assert (drawn.sent.sum((1, 2)) == selections * config.ep).all()
    assert (drawn.sent.sum(1).ravel() == drawn.received).all()
    assert drawn.counts.sum(0).tolist() == drawn.held.ravel().tolist()


def test_groups_do_not_mix():
    config = tiny(ep_size=2)
    drawn = route(config, (), 10, 0, 1)
    assert drawn.sent.shape == (2, 2, 2)
    assert drawn.held[2:].sum() == drawn.counts[2:].sum()


def test_a_hot_rank_gets_its_factor():
    config = tiny(tokens=200_000, router_spread=0.0)
    drawn = route(config, (parse_fault("expert_skew:rank=1,factor=1.5"),), 10, 0, 1)
    share = drawn.received / drawn.received.sum()
    assert share == pytest.approx(np.array([1, 1.5, 1, 1]) / 4.5, abs=0.003)


def test_a_drifting_skew_moves_on():
    config = tiny(tokens=50_000)
    skew = (parse_fault("expert_skew:rank=1,factor=3,drift=2"),)
    hot = [int(route(config, skew, step, 0, 1).received.argmax()) for step in range(8)]
    assert hot == [1, 1, 2, 2, 3, 3, 0, 0]


def test_a_skew_of_one_layer_leaves_the_others_alone():
    config = tiny()
    skew = (parse_fault("expert_skew:layer=2"),)
    assert (route(config, skew, 10, 0, 1).counts == route(config, (), 10, 0, 1).counts).all()
    assert (route(config, skew, 10, 0, 2).counts != route(config, (), 10, 0, 2).counts).any()


def test_domains_differ_in_what_they_choose_but_not_in_how_much():
    config = tiny(tokens=50_000)
    drawn = route(config, (parse_fault("expert_skew:factor=1,domain=0.5"),), 10, 0, 1)
    share = drawn.counts / drawn.counts.sum(1, keepdims=True)
    assert np.abs(share - share.mean(0)).max() > 0.01
    assert len(set(drawn.counts.sum(1).tolist())) == 1


@given(st.lists(st.floats(1e-3, 1e3), min_size=5, max_size=20), st.integers(1, 4))
def test_no_expert_is_more_likely_than_once_per_token(popularity, top_k):
    share = at_most_once(np.array(popularity), top_k)
    assert share.sum() == pytest.approx(1.0)
    assert (share <= 1 / top_k * (1 + 1e-9)).all()
    order = np.argsort(popularity)
    assert (np.diff(share[order]) >= -1e-12).all()


def test_more_tokens_than_can_be_counted_are_refused() -> None:
    with pytest.raises(MoescopeError, match="tokens must be at most"):
        SimConfig(tokens=MOST_TOKENS + 1)
