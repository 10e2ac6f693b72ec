"""The parts of the model against plain reference computations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from miniature import alone, losses_of, mini_config, mini_trainer
from torch import Tensor

from moescope.trainer.attention import rotary_tables, rotate
from moescope.trainer.experts import Experts
from moescope.trainer.faults import Faults
from moescope.trainer.flops import model_cost, peak_flops
from moescope.trainer.model import Transformer
from moescope.trainer.moe import MoE
from moescope.trainer.offload import Offload
from moescope.trainer.placement import placements_of
from moescope.trainer.progress import learning_rate


def make_moe(**moe: Any) -> MoE:
    config = mini_config(moe=moe)
    torch.manual_seed(0)
    layer = MoE(config, 1, alone(), [0] * 8, Faults(config.control, 0, torch.device("cpu")))
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return layer


def reference(layer: MoE, x_TD: Tensor, kept_TK: Tensor | None = None) -> Tensor:
    """Every token through its experts, one token at a time."""
    routed, experts = layer.router(x_TD), layer.experts
    out = torch.zeros_like(x_TD)
    for t in range(x_TD.shape[0]):
        for k, expert in enumerate(routed.experts_TK[t].tolist()):
            if kept_TK is None or kept_TK[t, k]:
                hidden = torch.nn.functional.silu(x_TD[t] @ experts.gate_eDF[expert]) * (
                    x_TD[t] @ experts.up_eDF[expert]
                )
                out[t] = out[t] + routed.weights_TK[t, k] * (hidden @ experts.down_eFD[expert])
    return out


@pytest.mark.parametrize("compute", ["loop", "grouped"])
def test_a_layer_equals_its_tokens_one_by_one(compute: str) -> None:
    layer = make_moe(expert_compute=compute)
    x_BSD = torch.randn(2, 16, 32, requires_grad=True)
    out, _ = layer(x_BSD)
    expected = reference(layer, x_BSD.flatten(0, 1)).view_as(out)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    ours = torch.autograd.grad(out.square().sum(), [x_BSD, *layer.experts.parameters()], retain_graph=True)
    theirs = torch.autograd.grad(expected.square().sum(), [x_BSD, *layer.experts.parameters()])
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("drop", ["position", "score"])
def test_capacity_drops_the_same_with_and_without_padding(drop: str) -> None:
    settings = {"capacity_factor": 0.75, "capacity_drop": drop}
    plain, padded = make_moe(**settings), make_moe(**settings, capacity_pad=True)
    x_TD = torch.randn(32, 32)
    dropped = []
    for layer in (plain, padded):
        layer.register_routing_hook(lambda routing: dropped.append(routing.dropped_E.tolist()))
    out, padded_out = plain(x_TD.view(2, 16, 32))[0], padded(x_TD.view(2, 16, 32))[0]
    torch.testing.assert_close(out, padded_out, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        routed, capacity = plain.router(x_TD), 6
    assert dropped[0] == dropped[1] == (routed.counts_E - capacity).clamp(min=0).tolist()
    assert sum(dropped[0]) > 0
    kept = torch.zeros(32, 2, dtype=torch.bool)
    for expert in range(8):
        queue = [(t, k) for t in range(32) for k in range(2) if routed.experts_TK[t, k] == expert]
        if drop == "score":
            queue.sort(key=lambda tk: -float(routed.weights_TK[tk]))
        for t, k in queue[:capacity]:
            kept[t, k] = True
    torch.testing.assert_close(out.flatten(0, 1), reference(plain, x_TD, kept), rtol=1e-4, atol=1e-5)


def test_grouped_experts_accept_experts_without_rows() -> None:
    torch.manual_seed(0)
    loop, grouped = Experts([0, 1, 2], 16, 16, "loop"), Experts([0, 1, 2], 16, 16, "grouped")
    for a, b in zip(loop.parameters(), grouped.parameters(), strict=True):
        torch.nn.init.normal_(a)
        b.data.copy_(a.data)
    x = torch.randn(5, 16)
    torch.testing.assert_close(loop(x, [2, 0, 3]), grouped(x, [2, 0, 3]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("recompute", ["experts", "full"])
def test_recomputation_changes_memory_not_results(recompute: str) -> None:
    settings: dict[str, Any] = {"balance": "aux_global", "noise": 0.1}
    kept = losses_of(mini_trainer(mini_config(moe=settings), alone()), 4)
    assert losses_of(mini_trainer(mini_config(moe=settings, train={"recompute": recompute}), alone()), 4) == kept


def test_offloading_moves_activations_and_leaves_weights() -> None:
    """Saved are x for the weight's gradient, the weight for x's, and y for its square: 16 * 512 floats each of x, y."""
    torch.manual_seed(0)
    linear, x = torch.nn.Linear(512, 512, bias=False), torch.randn(16, 512, requires_grad=True)
    offload = Offload(torch.device("cpu"))
    with offload:
        loss = linear(x).square().sum()
    assert offload.num_bytes == 2 * 16 * 512 * 4
    moved = torch.autograd.grad(loss, [x, linear.weight])
    plain = torch.autograd.grad(linear(x).square().sum(), [x, linear.weight])
    assert all(torch.equal(a, b) for a, b in zip(moved, plain, strict=True))


def test_rotary_positions_keep_lengths_and_see_distances_only() -> None:
    cos, sin = rotary_tables(8, 4, 10000.0)
    q, k = torch.randn(1, 1, 1, 4).expand(1, 1, 8, 4), torch.randn(1, 1, 1, 4).expand(1, 1, 8, 4)
    turned_q, turned_k = rotate(q, cos, sin), rotate(k, cos, sin)
    torch.testing.assert_close(turned_q.norm(dim=-1), q.norm(dim=-1))
    products = (turned_q @ turned_k.transpose(-1, -2))[0, 0]
    torch.testing.assert_close(products[3, 1], products[7, 5])
    assert not torch.isclose(products[3, 1], products[3, 2])


@pytest.mark.parametrize("shared", [0, 1])
def test_the_cost_counts_the_real_parameters(shared: int) -> None:
    config = mini_config(moe={"num_shared_experts": shared})
    model = Transformer(config, alone(), placements_of(config, 1))
    cost = model_cost(config)
    assert cost.total_params == sum(p.numel() for p in model.parameters())
    idle = 2 * 6 * 3 * 32 * 32
    assert cost.active_params == cost.total_params - idle
    assert peak_flops(config, torch.device("cpu")) is None
    assert peak_flops(mini_config(train={"peak_tflops": 2.0}), torch.device("cpu")) == 2e12


def test_the_rate_warms_up_and_falls_to_its_share() -> None:
    config = mini_config(train={"learning_rate": 1.0, "warmup_steps": 4, "steps": 20, "min_learning_rate_ratio": 0.1})
    rates = [learning_rate(config, step) for step in range(20)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == 1.0
    assert rates[-1] == pytest.approx(0.1)
    assert rates[4:] == sorted(rates[4:], reverse=True)


def test_a_slow_rank_computes_the_same_results() -> None:
    slow = mini_config(control={"slow_rank": 0, "slow_factor": 2.5})
    assert losses_of(mini_trainer(slow, alone()), 2) == losses_of(mini_trainer(mini_config(), alone()), 2)
