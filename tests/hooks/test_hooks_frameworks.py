"""Layers of real frameworks, where they are installed: counts equal a direct count.

``pip install 'moescope[frameworks]'`` installs what these need; without it they are skipped.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from moescope_hooks import observe
from moescope_hooks.frameworks import framework_layers
from torch import Tensor, nn

from moescope.telemetry import open_telemetry

STEPS, MICROBATCHES = 2, 2


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Several would fight for the cores with other tests; frameworks warn about much that is not ours."""
    torch.set_num_threads(1)
    torch.manual_seed(0)


def tiny_transformers(name: str) -> nn.Module:
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    shared = {
        "vocab_size": 64,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32,
        "num_experts_per_tok": 2,
    }
    if name == "Mixtral":
        config = transformers.MixtralConfig(**shared, num_local_experts=4)
    else:
        config = transformers.Qwen3MoeConfig(
            **shared, num_experts=4, moe_intermediate_size=8, head_dim=8, decoder_sparse_step=1
        )
    model: nn.Module = getattr(transformers, f"{name}ForCausalLM")(config)
    return model.train()


def count_routers(model: nn.Module, num_experts: int, top_k: int) -> list[list[int]]:
    """A count of our own, from the logits of whatever is called gate."""
    counted: list[list[int]] = []

    def count(_module: nn.Module, _args: Any, output: Any) -> None:
        logits = output[0] if isinstance(output, tuple) else output
        chosen = logits.detach().reshape(-1, num_experts).softmax(-1).topk(top_k, dim=-1).indices
        counted.append(torch.bincount(chosen.reshape(-1), minlength=num_experts).tolist())

    for name, module in model.named_modules():
        if name.endswith(".gate"):
            module.register_forward_hook(count)
    return counted


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["Mixtral", "Qwen3Moe"])
@pytest.mark.parametrize("recompute", [False, True])
def test_transformers_models_are_counted(tmp_path: Path, name: str, recompute: bool) -> None:
    model: Any = tiny_transformers(name)
    if recompute:
        model.gradient_checkpointing_enable()
    direct = count_routers(model, 4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observe(model, out=tmp_path, optimizer=optimizer) as obs:
        for _ in range(STEPS):
            for _ in range(MICROBATCHES):
                obs.microbatch()
                tokens = torch.randint(0, 64, (2, 16))
                loss = model(input_ids=tokens, labels=tokens).loss
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            obs.step(loss=loss)
    telemetry = open_telemetry(tmp_path)
    assert telemetry is not None
    assert telemetry.problems == []
    load = telemetry.expert_load
    assert load.select("step", "microbatch", "layer").rows() == [
        (s, m, layer) for s in range(STEPS) for m in range(MICROBATCHES) for layer in range(2)
    ]
    first_passes = [rows for i in range(0, len(direct), 4 if recompute else 2) for rows in direct[i : i + 2]]
    assert load["counts"].to_list() == first_passes


@pytest.mark.filterwarnings("default")
def test_megatron_routers_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))  # it asks even on a CPU
    pytest.importorskip("megatron.core", exc_type=ImportError)
    router_module = importlib.import_module("megatron.core.transformer.moe.router")
    gemm_module = importlib.import_module("megatron.core.transformer.moe.moe_utils")
    monkeypatch.setattr(gemm_module, "te_general_gemm", None, raising=False)  # undefined without its own extension
    config_module = importlib.import_module("megatron.core.transformer.transformer_config")
    config = config_module.TransformerConfig(
        num_layers=2,
        hidden_size=16,
        num_attention_heads=2,
        num_moe_experts=4,
        moe_router_topk=2,
        moe_router_load_balancing_type="none",
        add_bias_linear=False,
        use_cpu_initialization=True,
    )
    router = megatron_router(router_module.TopKRouter, config)
    router.set_layer_number(2)
    maps: list[Tensor] = []
    router.register_forward_hook(lambda _m, _a, output: maps.append(output[1].detach().clone()))
    model = nn.Sequential(router).train()
    with observe(model, out=tmp_path) as obs:
        for _ in range(STEPS):
            obs.microbatch()
            model(torch.randn(8, 2, 16, requires_grad=True))
            obs.step()
    telemetry = open_telemetry(tmp_path)
    assert telemetry is not None
    assert telemetry.expert_load["layer"].to_list() == [1] * STEPS
    assert telemetry.expert_load["counts"].to_list() == [routing_map.sum(0).tolist() for routing_map in maps]


def megatron_router(kind: Any, config: Any) -> Any:
    """A router outside of Megatron's own parallel state: its groups are those of one rank."""
    nobody = SimpleNamespace(size=lambda: 1, rank=lambda: 0)
    groups = SimpleNamespace(tp=nobody, cp=nobody, tp_cp=nobody, tp_dp_cp=nobody, ep=nobody)
    return kind(config=config, pg_collection=groups)


@pytest.mark.filterwarnings("default")
def test_torchtitan_layers_are_counted(tmp_path: Path) -> None:
    moe: Any = pytest.importorskip("torchtitan.models.common.moe", exc_type=ImportError)
    dispatcher = importlib.import_module("torchtitan.models.common.token_dispatcher").LocalTokenDispatcher
    linear = importlib.import_module("torchtitan.models.common.linear").Linear
    experts = moe.RoutedExperts.Config(
        inner_experts=moe.GroupedExperts.Config(dim=16, hidden_dim=16, num_experts=4),
        token_dispatcher=dispatcher.Config(num_experts=4, top_k=2),
    )
    router = moe.TokenChoiceTopKRouter.Config(
        num_experts=4, gate=linear.Config(in_features=16, out_features=4), top_k=2
    )
    layer = moe.MoE.Config(num_experts=4, routed_experts=experts, router=router).build()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.1)
    chosen: list[Tensor] = []
    layer.router.register_forward_hook(lambda _m, _a, output: chosen.append(output[1].detach().reshape(-1)))
    model = nn.ModuleDict({"layers": nn.ModuleDict({"3": layer})}).train()
    with observe(model, out=tmp_path) as obs:
        for _ in range(STEPS):
            obs.microbatch()
            layer(torch.randn(2, 8, 16))
            obs.step()
    telemetry = open_telemetry(tmp_path)
    assert telemetry is not None
    assert telemetry.problems == []
    assert telemetry.expert_load["layer"].to_list() == [3] * STEPS
    assert telemetry.expert_load["counts"].to_list() == [torch.bincount(c, minlength=4).tolist() for c in chosen]


class NamedLike(nn.Module):
    """Stands in for a framework's class of the same name and package, where the package cannot be had."""

    def __init__(self, output: Any = None) -> None:
        super().__init__()
        self.answer = output

    def forward(self, *_args: Any, **_kwargs: Any) -> Any:
        return self.answer


def stand_in(package: str, name: str, output: Any = None) -> NamedLike:
    made = type(name, (NamedLike,), {"__module__": f"{package}.somewhere"})(output)
    assert isinstance(made, NamedLike)
    return made


COUNTS = torch.tensor([1, 2, 0, 1])


def with_counts(module: NamedLike) -> NamedLike:
    module.exp_counts = COUNTS
    return module


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        (stand_in("torchtitan", "RoutedExperts"), (None, None, None, COUNTS)),
        (stand_in("olmo_core", "MoERouter", (None, None, COUNTS, None)), ()),
        (stand_in("megablocks", "LearnedRouter", (torch.zeros(2, 4), None, torch.tensor([[1, 3], [0, 1]]))), ()),
        (with_counts(stand_in("deepspeed", "MOELayer")), ()),
    ],
    ids=["torchtitan", "olmo-core", "megablocks", "deepspeed"],
)
def test_attachment_points_by_name(tmp_path: Path, module: NamedLike, arguments: tuple[Any, ...]) -> None:
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.Identity(), nn.ModuleDict({"moe": module})])})
    with observe(model, out=tmp_path) as obs:
        obs.microbatch()
        module(*arguments)
        obs.step()
    telemetry = open_telemetry(tmp_path)
    assert telemetry is not None
    assert telemetry.problems == []
    assert telemetry.expert_load.select("layer", "counts").rows() == [(1, COUNTS.tolist())]


def test_other_modules_are_left_alone() -> None:
    assert list(framework_layers(nn.Sequential(nn.Linear(2, 2), stand_in("mine", "TopKRouter")))) == []
