"""Dense blocks: the inner width of those below the experts, and of those that stand in for experts as a baseline."""

from __future__ import annotations

from moescope.trainer.config import Config


def moe_layers(config: Config) -> range:
    """The layers that hold experts."""
    last = config.model.num_layers if config.model.dense_baseline == "none" else config.model.num_dense_layers
    return range(config.model.num_dense_layers, last)


def dense_hidden_dim(config: Config, layer: int) -> int:
    """The inner width of a dense layer.

    In the baseline, what is replaced weighs 3 D F per expert and D E for the router; a SwiGLU of width H weighs 3 D H.
    Equal weight is H = n F + E / 3, rounded, with the n experts that a token passes or that there are.
    """
    model, moe = config.model, config.moe
    if layer < model.num_dense_layers:
        return model.dense_hidden_dim
    num_experts = moe.num_shared_experts + (moe.top_k if model.dense_baseline == "active" else moe.num_experts)
    return num_experts * moe.expert_hidden_dim + round(moe.num_experts / 3)
