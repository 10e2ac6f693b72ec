"""What the hooks cost: telemetry against a bare loop, a profiled window against a bare profiler, and bytes per step.

    python benchmarks/hooks_overhead.py --pairs 20

Steps with and without take turns in one process on one trainer, so that drift of the machine hits both alike. Wall time
is what counts; CPU time of the whole process is shown beside it, since it hardly depends on what else the machine does.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from moescope_hooks import Schedule, observe
from moescope_hooks.active import set_active
from moescope_hooks.blocks import Collective
from moescope_hooks.names import RangeName
from moescope_hooks.observation import Observation
from torch import nn

from moescope.trainer.loop import Trainer
from moescope.trainer.mesh import single_mesh
from moescope.trainer.moe import MoE
from moescope.trainer.presets import load_config

Cost = tuple[float, float]
"""Wall seconds and CPU seconds of one step."""


def timed(step: Callable[[], object]) -> Cost:
    """What one step takes."""
    wall, cpu = time.perf_counter(), time.process_time()
    step()
    return time.perf_counter() - wall, time.process_time() - cpu


class Switch:
    """Turns an observation off and on again between steps."""

    def __init__(self, trainer: Trainer, obs: Observation) -> None:
        self.obs = obs
        self.layers = [m for m in trainer.model.modules() if isinstance(m, MoE)]
        self.hooks = [dict(layer._routing_hooks) for layer in self.layers]

    def turn(self, on: bool) -> None:
        """Listen, or not."""
        set_active(self.obs if on else None)
        for layer, hooks in zip(self.layers, self.hooks, strict=True):
            layer._routing_hooks.clear()
            layer._routing_hooks.update(hooks if on else {})


def report(what: str, bare: list[Cost], observed: list[Cost], limit: float) -> None:
    """Print medians and the median of the pairs' ratios."""
    for i, clock in enumerate(("wall", "CPU")):
        ratios = [b[i] / a[i] - 1 for a, b in zip(bare, observed, strict=True)]
        base = statistics.median(a[i] for a in bare) * 1e3
        spread = statistics.quantiles(ratios, n=4)
        print(
            f"{what:<22} {clock:>4}  bare {base:8.1f} ms  overhead {statistics.median(ratios):+7.2%}"
            f"  (quartiles {spread[0]:+.2%} to {spread[2]:+.2%}; limit {limit:.0%})"
        )


def telemetry_overhead(trainer: Trainer, pairs: int) -> None:
    """Steps with telemetry against steps without."""
    bare, observed = [], []
    with tempfile.TemporaryDirectory() as out, observe(trainer.model, out=out, optimizer=trainer.optimizer) as obs:
        switch = Switch(trainer, obs)

        def observed_step(step: int) -> None:
            losses, norm = trainer.train_step(step, obs)
            obs.step(loss=losses[0], gradient_norm=norm)

        for step in range(-2, pairs):
            switch.turn(on=False)
            without = timed(lambda step=step: trainer.train_step(2 * step + 4, None))
            switch.turn(on=True)
            with_hooks = timed(lambda step=step: observed_step(2 * step + 5))
            if step >= 0:
                bare.append(without)
                observed.append(with_hooks)
    report("telemetry", bare, observed, 0.01)


def time_inside_hooks(trainer: Trainer, steps: int) -> None:
    """CPU time spent in the hooks' own methods, on the training thread and on the writer's, against the step's."""
    spent = dict.fromkeys(("training thread", "writer thread"), 0.0)

    def count(owner: object, name: str, thread: str) -> None:
        method = getattr(owner, name)

        def call(*args: object, **kwargs: object) -> object:
            start = time.thread_time()
            try:
                return method(*args, **kwargs)
            finally:
                spent[thread] += time.thread_time() - start

        setattr(owner, name, call)

    with tempfile.TemporaryDirectory() as out, observe(trainer.model, out=out, optimizer=trainer.optimizer) as obs:
        for name in ("_on_routing", "microbatch", "step"):
            count(obs, name, "training thread")
        for name in ("_take", "_flush"):
            count(obs._writer, name, "writer thread")
        for module in trainer.model.modules():
            if isinstance(module, MoE):
                for key, hook in module._routing_hooks.items():
                    layer, report_to = module.layer, obs._on_routing
                    module._routing_hooks[key] = lambda r, a=layer, m=module, f=report_to: f(a, m, lambda: r)
                    del hook
        start = time.process_time()
        for step in range(steps):
            losses, norm = trainer.train_step(step, obs)
            obs.step(loss=losses[0], gradient_norm=norm)
        total = time.process_time() - start
    for thread, seconds in spent.items():
        per_step = f"{seconds / steps * 1e3:.2f} ms of {total / steps * 1e3:.0f} ms CPU per step"
        print(f"inside the hooks, {thread}: {per_step}, {seconds / total:.2%}")


def window_overhead(trainer: Trainer, pairs: int) -> None:
    """Steps inside a profiled window of the hooks against steps inside a bare profiler with the same options."""
    bare, observed = [], []
    activities = [torch.profiler.ProfilerActivity.CPU]
    for pair in range(pairs):
        with torch.profiler.profile(activities=activities, record_shapes=True, profile_memory=True):
            bare.append(timed(lambda: trainer.train_step(0, None)))
        with (
            tempfile.TemporaryDirectory() as out,
            observe(trainer.model, out=out, profile=Schedule(start=0, steps=1)) as obs,
        ):
            observed.append(timed(lambda obs=obs: trainer.train_step(0, obs)))
            obs.step()
        print(f"window {pair + 1} of {pairs}", end="\r", flush=True)
    report("profiled window", bare, observed, 0.02)


TOKEN_BYTES = 2 * 7168
"""What one token sends: a hidden vector in bfloat16, of the width of a current large model."""


class RandomClock:
    """Moments some hundred microseconds apart, as collectives of a real step have them."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self._now_ns = time.time_ns()

    def stamp(self) -> int:
        """A later moment."""
        self._now_ns += 20_000 + int(torch.empty(1).exponential_(1 / 300_000, generator=self._generator))
        return self._now_ns

    def end_step(self) -> Callable[[Sequence[int]], list[int]]:
        """How the stamps are read: they are nanoseconds already."""
        return list


def note_layer(obs: Observation, place: tuple[int, int], sent: list[int], received: list[int]) -> None:
    """The forward and backward exchanges of one layer and microbatch, as the trainer notes them."""
    layer, microbatch = place
    for phase, backward in (("dispatch", False), ("combine", False), ("combine", True), ("dispatch", True)):
        there, back = (sent, received) if (phase == "dispatch") != backward else (received, sent)
        name = RangeName(phase, layer, microbatch, backward=backward)
        obs.add_collective(Collective(name, "ep", there, back), obs.stamp())


def bytes_per_step(
    *, layers: int, experts: int, top_k: int, microbatches: int, tokens: int, ep: int, steps: int = 20
) -> None:
    """Bytes of telemetry of one rank and step for the shape of a large model, with skewed random routing."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(layers, experts, generator=generator) ** 2 + 0.05
    with tempfile.TemporaryDirectory() as out:
        with observe(nn.Linear(1, 1), out=out, flush_steps=steps, flush_seconds=1e6) as obs:
            obs._stamps = RandomClock(generator)
            for _ in range(steps):
                for microbatch in range(microbatches):
                    obs.microbatch()
                    chosen = torch.multinomial(weights, tokens * top_k, replacement=True, generator=generator)
                    arriving = torch.multinomial(weights, tokens * top_k, replacement=True, generator=generator)
                    for layer in range(layers):
                        counts = torch.bincount(chosen[layer], minlength=experts)
                        sent = counts.view(ep, -1).sum(1) * TOKEN_BYTES
                        received = torch.bincount(arriving[layer] % ep, minlength=ep) * TOKEN_BYTES
                        obs.expert_counts(layer, counts)
                        note_layer(obs, (layer, microbatch), sent.tolist(), received.tolist())
                obs.step(loss=1.0, tokens=tokens * microbatches)
        by_table = {
            folder.name: sum(part.stat().st_size for part in folder.iterdir()) / steps / 1e3
            for folder in sorted((Path(out) / "telemetry").iterdir())
        }
    shape = f"{layers} layers, {experts} experts, {microbatches} microbatches, {ep} expert-parallel ranks"
    tables = ", ".join(f"{table} {size:.1f}" for table, size in by_table.items())
    total = sum(by_table.values())
    print(f"telemetry of {shape}: {total:.1f} kB per step and rank ({tables}; limit 200)", flush=True)


PARTS = ("bytes", "telemetry", "window")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--preset", default="small")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=PARTS, action="append", help="Measure this alone; may be repeated.")
    arguments = parser.parse_args()
    parts = arguments.only or PARTS
    if "bytes" in parts:
        for ep in (8, 64):
            bytes_per_step(layers=61, experts=256, top_k=8, microbatches=8, tokens=4096, ep=ep)
    if set(parts) == {"bytes"}:
        return
    torch.set_num_threads(arguments.threads)
    config = load_config(arguments.preset, train={"steps": 10000})
    trainer = Trainer(config, single_mesh())
    if "telemetry" in parts:
        time_inside_hooks(trainer, min(4, arguments.pairs))
        telemetry_overhead(trainer, arguments.pairs)
    if "window" in parts:
        window_overhead(trainer, max(3, arguments.pairs // 2))


if __name__ == "__main__":
    main()
