"""Parameters, FLOPs per token, and the peak they are compared with."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from moescope.trainer.config import Config
from moescope.trainer.dense import dense_hidden_dim, moe_layers

DENSE_PEAK_TFLOPS = {
    "H100": {"bfloat16": 989.5, "float32": 66.9},
    "H200": {"bfloat16": 989.5, "float32": 66.9},
    "A100": {"bfloat16": 312.0, "float32": 19.5},
    "B200": {"bfloat16": 2250.0},
    "MI300X": {"bfloat16": 1307.4},
}
"""Dense peaks without sparsity, from the vendors' data sheets; float32 without TF32."""


@dataclass(frozen=True)
class Cost:
    """What the model weighs and what a token costs."""

    total_params: int
    active_params: int
    """Parameters that one token passes."""
    flops_per_token: int
    """Forward and backward, model FLOPs: recomputation does not count."""


def model_cost(config: Config) -> Cost:
    """Parameters and FLOPs of the whole model.

    6 FLOPs per token and active matrix weight, plus 6 S D per layer for causal attention (two products of S/2
    positions on average, 2 FLOPs each, three times for forward and backward).
    """
    model, moe = config.model, config.moe
    num_moe = len(moe_layers(config))
    dense_widths = [dense_hidden_dim(config, layer) for layer in range(model.num_layers - num_moe)]
    expert = 3 * model.dim * moe.expert_hidden_dim
    always = model.num_layers * 4 * model.dim**2 + 3 * model.dim * sum(dense_widths)
    always += num_moe * (model.dim * moe.num_experts + moe.num_shared_experts * expert) + model.dim * model.vocab_size
    vectors = (2 * model.num_layers + 1) * model.dim
    lookup = model.dim * model.vocab_size
    active = always + num_moe * moe.top_k * expert
    total = always + num_moe * moe.num_experts * expert
    attention_flops = 6 * config.train.sequence_length * model.dim * model.num_layers
    return Cost(total + vectors + lookup, active + vectors + lookup, 6 * active + attention_flops)


def peak_flops(config: Config, device: torch.device) -> float | None:
    """Dense peak of one device in the compute type, FLOP/s; None if neither configured nor known."""
    if config.train.peak_tflops > 0:
        return config.train.peak_tflops * 1e12
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    for model, peaks in DENSE_PEAK_TFLOPS.items():
        if model in name:
            return peaks[config.train.dtype] * 1e12 if config.train.dtype in peaks else None
    return None
