"""The layers of torchtitan, Megatron-Core, DeepSpeed and OLMo-core, on a CPU."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from frameworks.counting import assert_counts, bincount, observed
from torch import Tensor, nn

EXPERTS, TOP_K, DIM = 4, 2, 16

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def as_layer(module: nn.Module, number: int) -> nn.Module:
    """A model in which ``module`` lies in decoder layer ``number``."""
    return nn.ModuleDict({"layers": nn.ModuleDict({str(number): module})}).train()


def test_torchtitan_moe(tmp_path: Path) -> None:
    moe = importlib.import_module("torchtitan.models.common.moe")
    dispatcher = importlib.import_module("torchtitan.models.common.token_dispatcher").LocalTokenDispatcher
    linear = importlib.import_module("torchtitan.models.common.linear").Linear
    experts = moe.RoutedExperts.Config(
        inner_experts=moe.GroupedExperts.Config(dim=DIM, hidden_dim=DIM, num_experts=EXPERTS),
        token_dispatcher=dispatcher.Config(num_experts=EXPERTS, top_k=TOP_K),
    )
    router = moe.TokenChoiceTopKRouter.Config(
        num_experts=EXPERTS, gate=linear.Config(in_features=DIM, out_features=EXPERTS), top_k=TOP_K
    )
    layer = moe.MoE.Config(num_experts=EXPERTS, routed_experts=experts, router=router).build()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.1)
    direct: list[list[int]] = []
    layer.router.register_forward_hook(lambda _m, _a, output: direct.append(bincount(output[1], EXPERTS)))
    telemetry = observed(as_layer(layer, 3), tmp_path, lambda: layer(torch.randn(2, 8, DIM)).square().mean())
    assert_counts(telemetry, [3], direct)


@pytest.fixture
def megatron(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Megatron-Core's MoE modules; it asks for a CUDA device and for its own extension even on a CPU."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(
        importlib.import_module("megatron.core.transformer.moe.moe_utils"), "te_general_gemm", None, raising=False
    )
    config = importlib.import_module("megatron.core.transformer.transformer_config").TransformerConfig(
        num_layers=2,
        hidden_size=DIM,
        ffn_hidden_size=DIM,
        num_attention_heads=2,
        num_moe_experts=EXPERTS,
        moe_router_topk=TOP_K,
        moe_router_load_balancing_type="none",
        moe_token_dispatcher_type="allgather",
        add_bias_linear=False,
        gradient_accumulation_fusion=False,
        use_cpu_initialization=True,
    )
    return SimpleNamespace(
        config=config,
        router=importlib.import_module("megatron.core.transformer.moe.router").TopKRouter,
        layer=importlib.import_module("megatron.core.transformer.moe.moe_layer").MoELayer,
        specs=importlib.import_module("megatron.core.models.gpt.gpt_layer_specs"),
        state=importlib.import_module("megatron.core.parallel_state"),
    )


def of_routing_maps(router: nn.Module) -> list[list[int]]:
    """A count of our own, from the maps that the router puts out."""
    direct: list[list[int]] = []
    router.register_forward_hook(lambda _m, _a, output: direct.append(output[1].sum(0).tolist()))
    return direct


def test_megatron_router(tmp_path: Path, megatron: Any) -> None:
    nobody = SimpleNamespace(size=lambda: 1, rank=lambda: 0)
    groups = SimpleNamespace(tp=nobody, cp=nobody, tp_cp=nobody, tp_dp_cp=nobody, ep=nobody)
    router = megatron.router(config=megatron.config, pg_collection=groups)
    router.set_layer_number(2)
    direct = of_routing_maps(router)

    def forward() -> Tensor:
        probabilities: Tensor = router(torch.randn(8, 2, DIM, requires_grad=True))[0]
        return probabilities.square().sum()

    assert_counts(observed(nn.Sequential(router).train(), tmp_path, forward), [1], direct)


def test_megatron_moe_layer(tmp_path: Path, megatron: Any, alone: None) -> None:  # noqa: ARG001
    megatron.state.initialize_model_parallel()
    try:
        spec = megatron.specs.get_gpt_layer_local_spec(num_experts=EXPERTS, moe_grouped_gemm=False)
        layer = megatron.layer(megatron.config, spec.submodules.mlp.submodules, layer_number=2)
        layer.set_layer_number(2)
        direct = of_routing_maps(layer.router)
        model = nn.Sequential(layer).train()
        telemetry = observed(model, tmp_path, lambda: layer(torch.randn(8, 2, DIM))[0].square().mean())
        assert_counts(telemetry, [1], direct)
    finally:
        megatron.state.destroy_model_parallel()


def test_deepspeed_moe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: None) -> None:  # noqa: ARG001
    deepspeed = importlib.import_module("deepspeed")
    monkeypatch.setattr(importlib.import_module("deepspeed.comm.torch"), "build_shm_op", lambda: None)  # compiles C++
    deepspeed.init_distributed("gloo")
    moe = importlib.import_module("deepspeed.moe.layer").MoE
    layer = moe(
        DIM,
        nn.Linear(DIM, DIM),
        num_experts=EXPERTS,
        k=TOP_K,
        capacity_factor=4.0,
        min_capacity=1,
        top2_2nd_expert_sampling=False,
    )
    layer.set_deepspeed_parallelism()
    direct: list[list[int]] = []
    gate = layer.deepspeed_moe.gate

    def count(_module: nn.Module, args: Any, _output: Any) -> None:
        logits = nn.functional.linear(args[0].float(), gate.wg.weight.float())
        direct.append(bincount(logits.topk(TOP_K, dim=-1).indices, EXPERTS))

    gate.register_forward_hook(count)
    telemetry = observed(as_layer(layer, 1), tmp_path, lambda: layer(torch.randn(2, 8, DIM))[0].square().mean())
    assert_counts(telemetry, [1], direct)


@pytest.mark.parametrize("version", [1, 2])
def test_olmo_routers(tmp_path: Path, version: int) -> None:
    if version == 1:
        kind = importlib.import_module("olmo_core.nn.moe.router").MoERouterConfig
        router = kind(top_k=TOP_K).build(DIM, EXPERTS)
    else:
        kind = importlib.import_module("olmo_core.nn.moe.v2.router").MoERouterConfigV2
        router = kind(d_model=DIM, num_experts=EXPERTS, top_k=TOP_K).build(init_device="cpu")
    direct: list[list[int]] = []
    router.register_forward_hook(lambda _m, _a, output: direct.append(bincount(output[1], EXPERTS)))

    def forward() -> Tensor:
        x = torch.randn(2, 8, DIM)
        weights: Tensor = (router(x) if version == 1 else router(x, False))[0]
        return weights.square().sum()

    assert_counts(observed(as_layer(router, 5), tmp_path, forward), [5], direct)
