"""Loss and load under every balancing method: a table and a picture, from one run each on the same text and weights.

    python benchmarks/balancing.py --steps 60 --svg docs/images/balancing.svg

With ``--keep FILE`` finished methods are kept there and not trained again, so that the rest can follow later.
One rank trains the global batch of four; loads on ranks are those that four ranks would receive. MaxVio is
(max - mean) / mean over experts or ranks, per layer and step, and its mean over layers and the steps shown.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

import torch
from moescope_hooks.routing import Routing

from moescope.trainer.balance import METHODS
from moescope.trainer.loop import Trainer
from moescope.trainer.mesh import single_mesh
from moescope.trainer.moe import MoE
from moescope.trainer.placement import contiguous_placement, member_loads
from moescope.trainer.presets import load_config

NUM_RANKS = 4
NUM_SEQUENCES = 16
"""The global batch: one microbatch of each of the four ranks."""
NUM_PARTS = 4
"""Equal parts of the run that a row of the table gives means of."""
COLORS = ("#000000", "#0072b2", "#009e73", "#d55e00", "#cc79a7")
"""Hues of Okabe and Ito, one per method."""
WIDTH, HEIGHT, LEFT, TOP, GAP = 420, 260, 50, 56, 70
"""Pixels of a panel, the margins around it, and the distance between panels."""


def maxvio(loads: Sequence[float]) -> float:
    """(max - mean) / mean."""
    return max(loads) * len(loads) / sum(loads) - 1


@dataclass
class Curves:
    """What one method did, step by step."""

    method: str
    loss: list[float] = field(default_factory=list)
    on_experts: list[float] = field(default_factory=list)
    """MaxVio."""
    on_ranks: list[float] = field(default_factory=list)
    validation: float = 0.0


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
        layers, self.counts = list(self.counts.values()), {}
        on_ranks = [maxvio(member_loads(counts, self.placement, NUM_RANKS)) for counts in layers]
        return statistics.fmean(maxvio(counts) for counts in layers), statistics.fmean(on_ranks)


def run(method: str, steps: int) -> Curves:
    """Train with one method."""
    train = {"steps": steps, "global_batch_sequences": NUM_SEQUENCES}
    trainer = Trainer(load_config("tiny", moe={"balance": method}, train=train), single_mesh())
    loads, curves = Loads(trainer), Curves(method)
    for step in range(steps):
        curves.loss.append(float(trainer.train_step(step, None)[0][0]))
        on_experts, on_ranks = loads.take()
        curves.on_experts.append(on_experts)
        curves.on_ranks.append(on_ranks)
        print(f"{method} step {step + 1} of {steps}: loss {curves.loss[-1]:.3f}", file=sys.stderr, end="\r")
    curves.validation = statistics.fmean(trainer.validate().values())
    return curves


def table(results: Sequence[Curves]) -> str:
    """Loss, load on experts and load on ranks of every method, as means over equal parts of the run."""
    steps = len(results[0].loss)
    ends = [steps * part // NUM_PARTS for part in range(NUM_PARTS + 1)]
    spans = [f"{first}-{last - 1}" for first, last in pairwise(ends)]
    lines = [
        "| balance | mean over steps | " + " | ".join(spans) + " | validation |",
        "|---|---" + "|--:" * (NUM_PARTS + 1) + "|",
    ]
    for result in results:
        rows = (
            ("loss", result.loss, 3),
            ("MaxVio, experts", result.on_experts, 2),
            ("MaxVio, ranks", result.on_ranks, 2),
        )
        for name, values, digits in rows:
            means = [statistics.fmean(values[a:b]) for a, b in pairwise(ends)]
            cells = [f"{mean:.{digits}f}" for mean in means] + [f"{result.validation:.3f}" if name == "loss" else ""]
            lines.append(f"| {f'`{result.method}`' if name == 'loss' else ''} | {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def picture(results: Sequence[Curves]) -> str:
    """Loss and load on ranks over the steps, side by side, as SVG; loads are running means of five steps."""
    panels = (
        ("Training loss, nats per byte", [result.loss for result in results]),
        ("MaxVio over four ranks", [_smooth(result.on_ranks) for result in results]),
    )
    width, height = 2 * WIDTH + LEFT + GAP + 20, HEIGHT + TOP + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"',
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for index, result in enumerate(results):
        x = LEFT + index * 150
        parts.append(f'<path d="M{x} 16h24" stroke="{COLORS[index]}" stroke-width="2.5"/>')
        parts.append(f'<text x="{x + 30}" y="20">{result.method}</text>')
    for index, (title, series) in enumerate(panels):
        parts += _panel(LEFT + index * (WIDTH + GAP), title, series)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(left: int, title: str, series: Sequence[Sequence[float]]) -> list[str]:
    low, high = min(map(min, series)), max(map(max, series))
    low = 0.0 if low < high / 4 else low
    last = max(1, len(series[0]) - 1)
    parts = [f'<text x="{left}" y="{TOP - 12}" font-weight="bold">{title}</text>']
    for fraction in (0.0, 0.5, 1.0):
        y, x = TOP + HEIGHT * (1 - fraction), left + WIDTH * fraction
        parts.append(f'<path d="M{left} {y:.1f}h{WIDTH}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{low + fraction * (high - low):.2f}</text>'
        )
        parts.append(
            f'<text x="{x:.1f}" y="{TOP + HEIGHT + 20}" text-anchor="middle">step {fraction * last:.0f}</text>'
        )
    for color, values in zip(COLORS, series, strict=False):
        points = (
            f"{left + WIDTH * i / last:.1f},{TOP + HEIGHT * (1 - (value - low) / (high - low)):.1f}"
            for i, value in enumerate(values)
        )
        parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{color}" stroke-width="1.8"/>')
    return parts


def _smooth(values: Sequence[float]) -> list[float]:
    return [statistics.fmean(values[max(0, i - 2) : i + 3]) for i in range(len(values))]


def _kept(path: Path | None, steps: int) -> dict[str, Curves]:
    """Methods that an earlier call finished with as many steps."""
    rows = json.loads(path.read_text(encoding="utf-8")) if path is not None and path.exists() else []
    return {row["method"]: Curves(**row) for row in rows if len(row["loss"]) == steps}


def main() -> None:
    """Run all methods, print the table and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="JSON file of finished methods.")
    parser.add_argument("--svg", type=Path, help="Where to draw the curves.")
    arguments = parser.parse_args()
    if arguments.steps < NUM_PARTS:
        parser.error(f"--steps must be at least {NUM_PARTS}")
    torch.set_num_threads(arguments.threads)
    kept = _kept(arguments.keep, arguments.steps)
    for method in METHODS:
        if method not in kept:
            kept[method] = run(method, arguments.steps)
            if arguments.keep:
                arguments.keep.write_text(json.dumps([asdict(curves) for curves in kept.values()]), encoding="utf-8")
    results = [kept[method] for method in METHODS]
    print(table(results))
    if arguments.svg:
        arguments.svg.write_text(picture(results), encoding="utf-8")


if __name__ == "__main__":
    main()
