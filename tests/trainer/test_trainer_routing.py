"""Routing by hand: selection, balancing, capacity and controls on examples small enough to compute on paper."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from miniature import alone, mini_config
from moescope_hooks.routing import Routing, router_figures
from torch import Tensor

from moescope.trainer.balance import ExpertBias, GlobalShare, sequence_loss, switch_loss
from moescope.trainer.capacity import capacity_of, places_in_expert
from moescope.trainer.router import Router, z_loss
from moescope.trainer.selection import Draws, limit_groups, uniform_assignment, zipf_scores


def route(logits_TE: Tensor, bias_E: Tensor | None = None, **moe: object):  # type: ignore[no-untyped-def]
    """Route through a router whose logits are given: one-hot inputs pick the weight's columns."""
    return make_router(logits_TE, bias_E, **moe)(torch.eye(logits_TE.shape[0]))


def make_router(logits_TE: Tensor, bias_E: Tensor | None = None, **moe: object) -> Router:
    num_tokens, num_experts = logits_TE.shape
    config = mini_config(model={"dim": num_tokens, "num_heads": 1}, moe={"num_experts": num_experts, **moe})
    router = Router(config, 1, alone(), bias_E)
    with torch.no_grad():
        router.weight_ED.copy_(logits_TE.T)
    return router


def test_the_best_experts_share_a_weight_of_one() -> None:
    logits = torch.tensor([[0.0, math.log(3), math.log(2), -9], [0, 0, math.log(4), math.log(8)]])
    routed = route(logits)
    assert routed.experts_TK.tolist() == [[1, 2], [3, 2]]
    torch.testing.assert_close(routed.weights_TK, torch.tensor([[0.6, 0.4], [2 / 3, 1 / 3]]))
    assert routed.counts_E.tolist() == [0, 1, 2, 1]
    raw = route(logits, renormalize=False)
    torch.testing.assert_close(raw.weights_TK[1], torch.tensor([8 / 14, 4 / 14]))


@pytest.mark.parametrize(("score", "expected"), [("sigmoid", 0.75), ("sqrt_softplus", math.sqrt(math.log(4)))])
def test_other_scores(score: str, expected: float) -> None:
    routed = route(torch.tensor([[math.log(3), -1.0, -2, -3]] * 2), top_k=1, renormalize=False, score=score)
    assert routed.weights_TK[0, 0].item() == pytest.approx(expected, rel=1e-6)


def test_selections_that_precision_flips_are_counted_either_way_round() -> None:
    """Sums 4.0152 and 4.0145; of weights rounded to 1.0 and 1.0078125 they are 4 and 4.0234, which rounds up."""
    weight_ED = torch.tensor([[1.0038] * 4, [1.0040, 1.0040, 1.0040, 1.0025], [-1.0] * 4, [-2.0] * 4])
    x = torch.ones(3, 4)
    for settings, flips in (
        ({}, 3.0),
        ({"router_dtype": "bfloat16"}, 3.0),
        ({"balance": "bias"}, 3.0),
        ({"score": "sigmoid", "num_groups": 2, "top_groups": 1}, 3.0),
        ({"noise": 0.1}, None),
    ):
        layer = make_router(weight_ED.T, top_k=1, **settings)
        routed = layer(x)
        other = None if layer.chooses_at_random else lambda layer=layer: layer.in_other_precision(x)
        found = router_figures(
            Routing(
                routed.counts_E, logits_TE=routed.logits_TE, selection_TE=routed.selection_TE, other_precision=other
            )
        )
        assert found is not None
        assert (None if found[2].isnan() else float(found[2])) == flips


def test_a_control_bias_moves_the_choice_and_not_the_weights() -> None:
    routed = route(torch.tensor([[2.0, 1, 0, 0]] * 2), torch.tensor([0.0, 0, 0, 5]), top_k=1, renormalize=False)
    assert routed.experts_TK.tolist() == [[3], [3]]
    assert routed.weights_TK[0, 0].item() == pytest.approx(1 / (math.e**2 + math.e + 2), rel=1e-5)


def test_groups_limit_the_choice() -> None:
    """Group sums of the two best: 0.9, 1.3, 0.8. The best expert overall lies outside the best group."""
    scores = torch.tensor([[0.9, 0.0, 0.7, 0.6, 0.4, 0.4]])
    assert limit_groups(scores, 3, 1).topk(2).indices.tolist() == [[2, 3]]
    assert limit_groups(scores, 3, 2).topk(2).indices.tolist() == [[0, 2]]


def test_the_switch_loss_is_one_when_uniform_and_the_number_of_experts_when_collapsed() -> None:
    uniform = torch.full((8, 4), 0.25)
    assert switch_loss(uniform, torch.full((4,), 0.25)).item() == pytest.approx(1)
    collapsed = torch.tensor([[1.0, 0, 0, 0]] * 8)
    assert switch_loss(collapsed, torch.tensor([1.0, 0, 0, 0])).item() == pytest.approx(4)


def test_the_sequence_loss_sees_what_the_batch_evens_out() -> None:
    """Two sequences, each collapsed onto another half of the experts: balanced as a batch, not as sequences."""
    p = torch.tensor([[0.5, 0.5, 0, 0]] * 2 + [[0, 0, 0.5, 0.5]] * 2)
    experts = torch.tensor([[0, 1]] * 2 + [[2, 3]] * 2)
    assert sequence_loss(p, experts, 2).item() == pytest.approx(2)
    assert sequence_loss(p, experts, 4).item() == pytest.approx(1)


def test_the_global_share_gathers_the_steps_microbatches() -> None:
    share = GlobalShare(1, alone().world)
    assert share.update(torch.tensor([4, 0])).tolist() == [1, 0]
    assert share.update(torch.tensor([0, 4])).tolist() == [0.5, 0.5]
    share.begin_step()
    assert share.update(torch.tensor([1, 3])).tolist() == [0.25, 0.75]


def test_the_bias_follows_the_load() -> None:
    bias = ExpertBias(3, 0.5)
    bias.update(torch.tensor([4, 2, 0]))
    assert bias.bias_E.tolist() == [-0.5, 0.0, 0.5]


def test_the_z_loss_by_hand() -> None:
    assert z_loss(torch.zeros(3, 4)).item() == pytest.approx(math.log(4) ** 2)


def test_uniform_routing_is_exactly_uniform() -> None:
    experts = uniform_assignment(16, 2, 8, start=3)
    assert Counter(experts.flatten().tolist()) == dict.fromkeys(range(8), 4)
    assert all(len(set(row)) == 2 for row in experts.tolist())
    assert route(torch.randn(8, 4)).counts_E.sum() == 16


def test_zipf_routing_follows_its_law_and_repeats() -> None:
    first = zipf_scores(20000, 4, 1.0, Draws("seed")).argmax(1)
    assert torch.equal(first, zipf_scores(20000, 4, 1.0, Draws("seed")).argmax(1))
    weights = torch.tensor([1, 1 / 2, 1 / 3, 1 / 4])
    shares = torch.bincount(first, minlength=4) / 20000
    torch.testing.assert_close(shares, weights / weights.sum(), atol=0.015, rtol=0)


def test_draws_continue_where_a_checkpoint_left_them() -> None:
    draws, other = Draws("a"), Draws("a")
    draws.generator()
    other.set_extra_state(draws.get_extra_state())
    assert torch.rand(1, generator=draws.generator()) == torch.rand(1, generator=other.generator())


def test_capacity_keeps_the_first_or_the_best() -> None:
    experts = torch.tensor([0, 1, 0, 0, 1, 0])
    counts = torch.tensor([4, 2])
    assert places_in_expert(experts, counts, None).tolist() == [0, 0, 1, 2, 1, 3]
    scores = torch.tensor([0.1, 0.5, 0.9, 0.3, 0.6, 0.2])
    assert places_in_expert(experts, counts, scores).tolist() == [3, 1, 0, 1, 0, 2]
    assert capacity_of(num_tokens=10, top_k=2, num_experts=8, factor=1.25) == 4


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60))
def test_places_number_every_queue_without_gaps(experts: list[int]) -> None:
    experts_A = torch.tensor(experts)
    counts = torch.bincount(experts_A, minlength=5)
    priority = torch.rand(len(experts), generator=torch.Generator().manual_seed(0))
    for given_priority in (None, priority):
        places = places_in_expert(experts_A, counts, given_priority)
        for expert in range(5):
            assert sorted(places[experts_A == expert].tolist()) == list(range(int(counts[expert])))
