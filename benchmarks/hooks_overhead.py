"""What the hooks cost: telemetry against a bare loop, a profiled window against a bare profiler, and bytes per step.

    python benchmarks/hooks_overhead.py --rounds 20
    python benchmarks/hooks_overhead.py --rounds 200 --narrow            # what it costs, resolved to a millisecond

A round is a step with and two without, in changing order, in one process on one trainer, so that drift of the machine
hits all alike. Shown are the median over the rounds and the interval that holds it in 95 % of resamplings, beside the
same for the two steps without: the noise. Wall time is what counts; CPU time of the whole process stands beside it.

Steps of seconds scatter by more than the hooks cost. ``--narrow`` therefore takes steps whose layers are a few features
wide: layers, experts, tokens and microbatches are the preset's, so the hooks have the same to do, while the products
around them take a tenth of the time, and the difference shows. It is given as a share of the preset's own step.

The time inside the hooks is measured too: wall time of every call on the training thread, CPU time of the writer's
thread, and in a window the ranges times what one costs.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from moescope_hooks import Schedule, observe
from moescope_hooks.active import set_active
from moescope_hooks.blocks import Collective
from moescope_hooks.names import RangeName
from moescope_hooks.observation import Observation
from moescope_hooks.ranges import _Range, traced
from moescope_hooks.windows import TraceWindows
from torch import nn

from moescope.trainer.loop import Trainer
from moescope.trainer.mesh import single_mesh
from moescope.trainer.moe import MoE
from moescope.trainer.presets import load_config

TELEMETRY_LIMIT, WINDOW_LIMIT = 0.01, 0.02
"""What telemetry may add to a step, and a profiled window to one under a bare profiler."""

NARROW = ("model.dim=16", "model.num_heads=2", "model.dense_hidden_dim=16", "moe.expert_hidden_dim=16")
"""Settings that leave the hooks as much to do and the products little."""

Cost = tuple[float, float]
"""Wall seconds and CPU seconds of one step."""


def timed(step: Callable[[], object]) -> Cost:
    """What one step takes, after a full garbage collection: else one of 0.3 s falls into every third step or so,
    which profilers' objects bring about."""
    gc.collect()
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


def interval(values: Sequence[float], resamples: int = 2_000) -> tuple[float, float, float]:
    """The median and the bounds within which 95 % of the medians of resampled values lie."""
    drawn = np.random.default_rng(0).choice(values, (resamples, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return float(np.median(values)), float(low), float(high)


@dataclass(frozen=True, slots=True)
class Round:
    """A step without, one with, and another one without."""

    bare: Cost
    observed: Cost
    again: Cost


ORDERS = ((0, 1, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0), (0, 2, 1), (1, 0, 2))
"""Every order of a round's three steps in turn, so that each comes as often before as after the others."""


def rounds_of(count: int, bare: Callable[[], Cost], observed: Callable[[], Cost]) -> list[Round]:
    """Measure rounds in changing order; the first warms up and does not count."""
    found = []
    for number in range(count + 1):
        costs = dict.fromkeys(range(3), (0.0, 0.0))
        for place in ORDERS[number % len(ORDERS)]:
            costs[place] = observed() if place == 1 else bare()
        found.append(Round(*costs.values()))
        print(f"round {number} of {count}", end="\r", file=sys.stderr)
    return found[1:]


def report(what: str, rounds: Sequence[Round], limit: float) -> None:
    """Print the overhead, and beside it what the same comparison says of two steps without: the noise."""
    for i, clock in enumerate(("wall", "CPU")):
        base = statistics.median(r.bare[i] for r in rounds) * 1e3
        overhead = interval([2 * r.observed[i] / (r.bare[i] + r.again[i]) - 1 for r in rounds])
        control = interval([r.again[i] / r.bare[i] - 1 for r in rounds])
        print(
            f"{what:<16} {clock:>4}  bare {base:8.1f} ms  overhead {overhead[0]:+7.2%}"
            f" ({overhead[1]:+.2%} to {overhead[2]:+.2%}), limit {limit:.0%};"
            f"  bare against bare {control[0]:+.2%} ({control[1]:+.2%} to {control[2]:+.2%})",
            flush=True,
        )


def report_narrow(what: str, rounds: Sequence[Round], step_s: float, limit: float) -> None:
    """Print what was added to narrow steps, in milliseconds and as a share of a step of ``step_s`` seconds."""

    def told(differences: Sequence[float]) -> str:
        middle, low, high = interval(differences)
        shares = " to ".join(f"{value / step_s:+.2%}" for value in (low, high))
        return f"{middle * 1e3:+.1f} ms = {middle / step_s:+.2%} ({shares})"

    for i, clock in enumerate(("wall", "CPU")):
        narrow_s = statistics.median(r.bare[i] for r in rounds)
        added = told([r.observed[i] - (r.bare[i] + r.again[i]) / 2 for r in rounds])
        control = told([r.again[i] - r.bare[i] for r in rounds])
        print(
            f"{what:<16} {clock:>4}  narrow step {narrow_s * 1e3:.0f} ms; added {added} of a step of"
            f" {step_s * 1e3:.0f} ms, limit {limit:.0%};  bare against bare {control}",
            flush=True,
        )


class Steps:
    """The steps to train, one after the other."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.next = trainer, 0

    def train(self, obs: Observation | None) -> None:
        """Train the next step, observed or not."""
        losses, norm = self.trainer.train_step(self.next, obs)
        self.next += 1
        if obs is not None:
            obs.step(loss=losses[0], gradient_norm=norm)


def telemetry_rounds(trainer: Trainer, rounds: int) -> list[Round]:
    """Steps with telemetry against steps without."""
    steps = Steps(trainer)
    with tempfile.TemporaryDirectory() as out, observe(trainer.model, out=out, optimizer=trainer.optimizer) as obs:
        switch = Switch(trainer, obs)

        def step(*, observed: bool) -> Cost:
            switch.turn(on=observed)
            return timed(lambda: steps.train(obs if observed else None))

        return rounds_of(rounds, lambda: step(observed=False), lambda: step(observed=True))


def time_inside_hooks(trainer: Trainer, steps: int) -> None:
    """Time spent in the hooks' own methods, on the training thread and on the writer's, against the step's."""
    spent = dict.fromkeys(("training thread", "writer thread"), 0.0)

    def count(owner: object, name: str, thread: str, clock: Callable[[], float]) -> None:
        method = getattr(owner, name)

        def call(*args: object, **kwargs: object) -> object:
            start = clock()
            try:
                return method(*args, **kwargs)
            finally:
                spent[thread] += clock() - start

        setattr(owner, name, call)

    with tempfile.TemporaryDirectory() as out, observe(trainer.model, out=out, optimizer=trainer.optimizer) as obs:
        for name in ("_on_routing", "microbatch", "step"):
            count(obs, name, "training thread", time.perf_counter)
        for name in ("_take", "_flush"):
            count(obs._writer, name, "writer thread", time.thread_time)
        for module in trainer.model.modules():
            if isinstance(module, MoE):
                for key in module._routing_hooks:
                    layer, report_to = module.layer, obs._on_routing
                    module._routing_hooks[key] = lambda r, a=layer, m=module, f=report_to: f(a, m, lambda: r)
        start = time.perf_counter()
        for step in range(steps):
            losses, norm = trainer.train_step(step, obs)
            obs.step(loss=losses[0], gradient_norm=norm)
        total = time.perf_counter() - start
    for thread, seconds in spent.items():
        per_step = f"{seconds / steps * 1e3:.2f} ms in a step of {total / steps * 1e3:.0f} ms"
        print(f"inside the hooks, {thread}: {per_step}, {seconds / total:.2%}", flush=True)


def bare_profile() -> torch.profiler.profile:
    """A profiler with the options of the hooks' windows."""
    return torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True, profile_memory=True
    )


def window_rounds(trainer: Trainer, rounds: int) -> list[Round]:
    """Steps inside a profiled window of the hooks against steps inside a bare profiler with the same options."""
    steps = Steps(trainer)
    TraceWindows._export = lambda *_: None  # type: ignore[method-assign]  # comes after the step, and takes ten times as long

    def bare() -> Cost:
        with bare_profile():
            return timed(lambda: steps.train(None))

    def observed() -> Cost:
        with (
            tempfile.TemporaryDirectory() as out,
            observe(trainer.model, out=out, profile=Schedule(start=0, steps=2)) as obs,
        ):
            return timed(lambda: steps.train(obs))

    return rounds_of(rounds, bare, observed)


def identity(values: torch.Tensor) -> torch.Tensor:
    """The cheapest region there is."""
    return values.view_as(values)


def time_of_a_region(calls: int = 100, batches: int = 40) -> float:
    """Seconds that :func:`traced` adds to a region and its backward pass while a trace is recorded.

    Median over batches, with and without in turn, of the difference.
    """

    def batch(call: Callable[[torch.Tensor], torch.Tensor]) -> float:
        values = torch.zeros(8, 8, requires_grad=True)
        start = time.perf_counter()
        result = values
        for _ in range(calls):
            result = call(result)
        result.sum().backward()
        return time.perf_counter() - start

    def marked(values: torch.Tensor) -> torch.Tensor:
        return traced("experts", 0, identity, values)

    return statistics.median((batch(marked) - batch(identity)) / calls for _ in range(batches))


def time_inside_window(trainer: Trainer) -> None:
    """What the ranges of one step cost while a trace is recorded, against a step under a bare profiler."""
    bare = []
    for step in range(3):
        with bare_profile():
            bare.append(timed(lambda step=step: trainer.train_step(step, None))[0])
    opened: list[str] = []
    plain_open = _Range.open

    def counting(self: _Range) -> None:
        plain_open(self)
        if self._leave is not None:
            opened.append(self.name)

    with (
        tempfile.TemporaryDirectory() as out,
        observe(trainer.model, out=out, profile=Schedule(start=0, steps=2)) as obs,
    ):
        _Range.open = counting
        trainer.train_step(3, obs)
        _Range.open = plain_open
        seconds = time_of_a_region()
    regions, step_s = len(opened) / 2, statistics.median(bare)
    print(
        f"ranges in a window: {regions:.0f} regions with their backward passes, {seconds * 1e6:.0f} us each,"
        f" {regions * seconds * 1e3:.1f} ms in a step of {step_s * 1e3:.0f} ms, {regions * seconds / step_s:.2%}",
        flush=True,
    )


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--microbatches", type=int, help="Microbatches of a step, instead of the preset's.")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--narrow", action="store_true", help="Compare steps of narrow layers.")
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
    config = load_config(arguments.preset, train={"steps": 100_000})
    if arguments.microbatches:
        sequences = arguments.microbatches * config.train.microbatch_sequences
        config = load_config(arguments.preset, train={"steps": 100_000, "global_batch_sequences": sequences})
    trainer = Trainer(config, single_mesh())
    if arguments.narrow:
        narrow(trainer, parts, arguments.preset, arguments.rounds)
        return
    if "telemetry" in parts:
        time_inside_hooks(trainer, min(8, arguments.rounds))
        report("telemetry", telemetry_rounds(trainer, arguments.rounds), TELEMETRY_LIMIT)
    if "window" in parts:
        time_inside_window(trainer)
        report("profiled window", window_rounds(trainer, arguments.rounds), WINDOW_LIMIT)


def narrow(trainer: Trainer, parts: Sequence[str], preset: str, rounds: int) -> None:
    """Compare steps of narrow layers; ``trainer`` says how long the preset's own steps take."""
    sequences = trainer.config.train.global_batch_sequences
    config = load_config(preset, settings=NARROW, train={"steps": 100_000, "global_batch_sequences": sequences})
    thin = Trainer(config, single_mesh())
    wide = Steps(trainer)
    wide.train(None)
    if "telemetry" in parts:
        step_s = statistics.median(timed(lambda: wide.train(None))[0] for _ in range(5))
        report_narrow("telemetry", telemetry_rounds(thin, rounds), step_s, TELEMETRY_LIMIT)
    if "window" in parts:

        def profiled() -> float:
            with bare_profile():
                return timed(lambda: wide.train(None))[0]

        step_s = statistics.median(profiled() for _ in range(5))
        report_narrow("profiled window", window_rounds(thin, rounds), step_s, WINDOW_LIMIT)


if __name__ == "__main__":
    main()
