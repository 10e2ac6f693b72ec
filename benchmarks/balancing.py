"""Loss and load under every balancing method: one table, from one run each on the same text and weights.

    python benchmarks/balancing.py --steps 60

One rank trains the global batch of four; loads on ranks are those that four ranks would receive. MaxVio is
(max - mean) / mean over experts or ranks, per layer and step, and its mean over layers and the steps shown.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict

import torch
from moescope_hooks.routing import Routing

from moescope.trainer.balance import METHODS
from moescope.trainer.loop import Trainer
from moescope.trainer.mesh import single_mesh
from moescope.trainer.moe import MoE
from moescope.trainer.placement import contiguous_placement
from moescope.trainer.presets import load_config

NUM_RANKS = 4


def maxvio(loads: list[int]) -> float:
    """(max - mean) / mean."""
    return max(loads) * len(loads) / sum(loads) - 1


class Loads:
    """Counts of the current step by layer."""

    def __init__(self, trainer: Trainer) -> None:
        self.counts: dict[int, list[int]] = {}
        self.placement = contiguous_placement(trainer.config.moe.num_experts, NUM_RANKS)
        for module in trainer.model.modules():
            if isinstance(module, MoE):
                module.register_routing_hook(lambda routing, layer=module.layer: self._add(layer, routing))

    def _add(self, layer: int, routing: Routing) -> None:
        old = self.counts.get(layer, [0] * routing.counts_E.numel())
        self.counts[layer] = [a + b for a, b in zip(old, routing.counts_E.tolist(), strict=True)]

    def take(self) -> tuple[float, float]:
        """MaxVio on experts and on ranks, means over layers; starts the next step."""
        on_experts, on_ranks = [], []
        for counts in self.counts.values():
            by_rank: dict[int, int] = defaultdict(int)
            for rank, count in zip(self.placement, counts, strict=True):
                by_rank[rank] += count
            on_experts.append(maxvio(counts))
            on_ranks.append(maxvio(list(by_rank.values())))
        self.counts = {}
        return statistics.fmean(on_experts), statistics.fmean(on_ranks)


def run(method: str, steps: int, marks: list[int]) -> str:
    """Train with one method; returns its row of the table."""
    config = load_config("tiny", moe={"balance": method}, train={"steps": steps})
    trainer = Trainer(config, single_mesh())
    loads = Loads(trainer)
    losses, violations = [], []
    for step in range(steps):
        losses.append(float(trainer.train_step(step, None)[0][0]))
        violations.append(loads.take())
        print(f"{method} step {step + 1} of {steps}: loss {losses[-1]:.3f}", file=sys.stderr, end="\r")
    validation = trainer.validate()
    early, late = violations[: steps // 3], violations[-steps // 3 :]
    cells = [f"{losses[mark - 1]:.3f}" for mark in marks]
    cells.append(f"{statistics.fmean(validation.values()):.3f}")
    for part in (early, late):
        cells += [f"{statistics.fmean(v[i] for v in part):.2f}" for i in range(2)]
    return f"| `{method}` | " + " | ".join(cells) + " |"


def main() -> None:
    """Run all methods and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    marks = [max(1, arguments.steps * third // 3) for third in (1, 2, 3)]
    heads = [f"loss at {mark}" for mark in marks]
    heads += ["validation loss", "MaxVio experts, first third", "ranks", "MaxVio experts, last third", "ranks"]
    print("| balance | " + " | ".join(heads) + " |")
    print("|---" * (len(heads) + 1) + "|")
    for method in METHODS:
        print(run(method, arguments.steps, marks), flush=True)


if __name__ == "__main__":
    main()
