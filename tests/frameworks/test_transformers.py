"""Mixtral and Qwen3-MoE of Hugging Face transformers, tiny, trained for a few steps; of version 5 and of version 4.

Version 4 loops over a list of experts, which cannot be compiled in one graph: it runs the tests of gates alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from frameworks.counting import assert_counts, bincount, observed
from torch import Tensor, nn

EXPERTS, TOP_K, VOCABULARY = 4, 2, 64

pytestmark = pytest.mark.filterwarnings("default")


def tiny(name: str) -> nn.Module:
    """A model of two layers."""
    shared = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32,
        "num_experts_per_tok": TOP_K,
    }
    if name == "Mixtral":
        config = transformers.MixtralConfig(**shared, num_local_experts=EXPERTS)
    else:
        config = transformers.Qwen3MoeConfig(
            **shared, num_experts=EXPERTS, moe_intermediate_size=8, head_dim=8, decoder_sparse_step=1
        )
    model: nn.Module = getattr(transformers, f"{name}ForCausalLM")(config)
    return model.train()


def count_gates(model: nn.Module) -> list[list[int]]:
    """A count of our own, from the logits of whatever is called gate."""
    counted: list[list[int]] = []

    def count(_module: nn.Module, _args: Any, output: Any) -> None:
        logits = output[0] if isinstance(output, tuple) else output
        chosen = logits.detach().reshape(-1, EXPERTS).softmax(-1).topk(TOP_K, dim=-1).indices
        counted.append(bincount(chosen, EXPERTS))

    for name, module in model.named_modules():
        if name.endswith(".gate"):
            module.register_forward_hook(count)
    return counted


def train_on(model: Any) -> Any:
    """A forward pass over the next tokens of a fixed series."""
    generator = torch.Generator().manual_seed(1)

    def forward() -> Tensor:
        tokens = torch.randint(0, VOCABULARY, (2, 16), generator=generator)
        loss: Tensor = model(input_ids=tokens, labels=tokens).loss
        return loss

    return forward


@pytest.mark.parametrize("name", ["Mixtral", "Qwen3Moe"])
@pytest.mark.parametrize("recompute", [False, True])
def test_counts_are_those_of_the_gates(tmp_path: Path, name: str, recompute: bool) -> None:
    model: Any = tiny(name)
    if recompute:
        model.gradient_checkpointing_enable()
    direct = count_gates(model)
    telemetry = observed(model, tmp_path, train_on(model))
    passes = [rows for i in range(0, len(direct), 4 if recompute else 2) for rows in direct[i : i + 2]]
    assert_counts(telemetry, [0, 1], passes)


@pytest.mark.parametrize("name", ["Mixtral", "Qwen3Moe"])
def test_a_compiled_model_has_the_same_counts(tmp_path: Path, name: str) -> None:
    eager = tiny(name)
    expected = observed(eager, tmp_path / "eager", train_on(eager)).expert_load["counts"].to_list()
    torch.manual_seed(0)
    model = tiny(name)
    model.load_state_dict(tiny_again(name).state_dict())
    found = observed(model, tmp_path / "compiled", train_on(torch.compile(model, backend="aot_eager")))
    assert_counts(found, [0, 1], expected)


def tiny_again(name: str) -> nn.Module:
    """The same weights as the first model of a test had."""
    torch.manual_seed(0)
    return tiny(name)
