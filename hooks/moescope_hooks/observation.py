"""``observe``: what a training loop calls to leave telemetry and traces behind.

    with observe(model, out="runs/mine", profile=Schedule(start=10, steps=2), optimizer=optimizer) as obs:
        for batch in data:
            for microbatch in batch:
                obs.microbatch()
                loss = model(microbatch); loss.backward()
            optimizer.step(); optimizer.zero_grad()
            obs.step(loss=loss, tokens=batch.numel())

Nothing here synchronises the device in the training thread, and nothing raises into the loop: a failure is logged
once and noted as a gap.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from moescope_hooks import clock as clocks
from moescope_hooks.active import set_active
from moescope_hooks.attach import MoELayers, attach
from moescope_hooks.blocks import Collective
from moescope_hooks.frameworks import framework_layers
from moescope_hooks.ranges import in_backward
from moescope_hooks.routing import Routing, router_figures
from moescope_hooks.runinfo import describe_run, rank_facts, write_run
from moescope_hooks.schedule import Schedule
from moescope_hooks.sizes import Sizes
from moescope_hooks.stamps import DeviceStamps, HostStamps, Stamp
from moescope_hooks.steprecord import StepRecord
from moescope_hooks.windows import TraceWindows
from moescope_hooks.windowsize import TraceSize
from moescope_hooks.writer import Gaps, TelemetryWriter

P = ParamSpec("P")
R = TypeVar("R")

ANNOUNCE_TIMEOUT_S = 30.0
FIGURED_MICROBATCHES = 2
"""Microbatches of each step whose routers' figures are computed: they cost more than all else, and vary little.

Where a trace is recorded, which makes each of their operations dearer still, one.
"""


def _harmless(
    what: str,
) -> Callable[[Callable[Concatenate[Observation, P], R]], Callable[Concatenate[Observation, P], R | None]]:
    """Turn an exception of the decorated method into a gap: the training loop must not see it."""

    def decorate(method: Callable[Concatenate[Observation, P], R]) -> Callable[Concatenate[Observation, P], R | None]:
        @functools.wraps(method)
        def call(self: Observation, /, *args: P.args, **kwargs: P.kwargs) -> R | None:
            try:
                return method(self, *args, **kwargs)
            except Exception as error:  # whatever it was, the training goes on
                self.gaps.add(what, error)
                return None

        return call

    return decorate


class Observation:
    """An observed training run of this rank; made by :func:`observe` and used as a context manager."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        out: Path,
        *,
        profile: Schedule | None,
        optimizer: torch.optim.Optimizer | None,
        moe_layers: MoELayers,
        first_step: int,
        measure_clock: bool,
        flush_steps: int,
        flush_seconds: float,
    ) -> None:
        distributed = dist.is_available() and dist.is_initialized()
        self.out = out
        self.rank = dist.get_rank() if distributed else 0
        self.world_size = dist.get_world_size() if distributed else 1
        self.gaps = Gaps(self.rank)
        self.current_step = first_step
        self.current_microbatch = 0
        self._models = models
        self._moe_layers = moe_layers
        self._schedule = profile
        self._measure_clock = measure_clock and self.world_size > 1
        self._flush = (flush_steps, flush_seconds)
        self._sizes = Sizes(models, optimizer)
        self._cuda = torch.cuda.is_available() and any(p.is_cuda for model in models for p in model.parameters())
        self._handles: list[RemovableHandle] = []
        self._windows: TraceWindows | None = None
        self._writer: TelemetryWriter | None = None
        self._stamps: HostStamps | DeviceStamps = HostStamps()
        self._record = StepRecord(self.rank, first_step)
        self._sequence: dict[str, int] = {}
        self._markers = 0
        self._clock_group: dist.ProcessGroup | None = None
        self._clock_peers: list[int] = []

    # The loop's side.

    @_harmless("a microbatch marker")
    def microbatch(self, number: int | None = None) -> None:
        """Mark the start of a microbatch's forward pass; they count from 0 within each step.

        ``number``: which one, where a pipeline schedule does not run them in order or comes back to one.
        """
        self.current_microbatch = self._markers if number is None else number
        self._markers += 1

    @_harmless("expert counts")
    def expert_counts(self, layer: int, counts: Tensor, dropped: Tensor | None = None) -> None:
        """Record how many assignments this rank's tokens made to each expert, [num_experts], in one forward pass."""
        self._add_routing(layer, Routing(counts, dropped))

    @_harmless("the end of a step")
    def pause(self) -> None:
        """End the step here: what follows until :meth:`step` (validation, a checkpoint) belongs to no step."""
        if self._record.end_ns is None:
            self._record.end_ns = time.time_ns()
            if self._windows is not None:
                self._windows.end_step()

    def step(
        self,
        *,
        loss: Tensor | float | None = None,
        tokens: int | None = None,
        validation_loss: Tensor | float | None = None,
        gradient_norm: Tensor | float | None = None,
    ) -> None:
        """End the step and begin the next one. Tensors are read later, off this thread."""
        self.pause()
        self._hand_over({"loss": loss, "validation_loss": validation_loss, "gradient_norm": gradient_norm}, tokens)
        microbatches = self.current_microbatch + 1
        self.current_step += 1
        self.current_microbatch = self._markers = 0
        self._record = StepRecord(self.rank, self.current_step)
        self._begin(microbatches)

    @_harmless("a flush")
    def flush(self) -> None:
        """Have the telemetry of all steps that have ended written now, off this thread.

        Called where a checkpoint is saved, it keeps a run that dies and resumes from there without a hole.
        """
        if self._writer is not None:
            self._writer.flush()

    # The model's side.

    @property
    def tracing(self) -> bool:
        """Whether a trace is being recorded now."""
        return self._windows is not None and self._windows.tracing

    @_harmless("a moment")
    def stamp(self) -> Stamp:
        """This moment, as :meth:`add_collective` takes it."""
        return self._stamps.stamp()

    def lost(self, what: str, error: Exception) -> None:
        """Note that ``what`` is missing from the telemetry."""
        self.gaps.add(what, error)

    @_harmless("expert counts")
    def note_routing(self, layer: int, routing: Routing, figures: Tensor | None) -> None:
        """Record the counts of a layer in a compiled region."""
        if self._counts_now():
            self._record.add_load(self._microbatch_of(layer), layer, routing, figures)

    @_harmless("a collective")
    def add_collective(self, collective: Collective, arrival: Stamp | None) -> None:
        """Record a collective that is complete now; see :func:`moescope_hooks.collective`."""
        sequence = self._sequence.get(collective.group, 0)
        self._sequence[collective.group] = sequence + 1
        end = self.stamp()
        if self._record.end_ns is None and arrival is not None and end is not None:
            self._record.add_collective(collective, sequence, arrival, end)

    # Life cycle.

    def __enter__(self) -> Observation:
        """Attach to the model and begin the first step; every rank enters."""
        self._start()
        set_active(self)
        self._begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Detach, write what is left, and wait for the files; does not hide an exception of the loop."""
        set_active(None)
        self._finish(failed=kind is not None)

    @_harmless("the start of the observation")
    def _start(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        self._writer = TelemetryWriter(
            self.out / "telemetry", self.rank, self.gaps, flush_steps=self._flush[0], flush_seconds=self._flush[1]
        )
        for model in self._models:
            self._handles += attach(model, self._moe_layers, self._on_routing)
        if self._cuda:
            self._stamps = DeviceStamps()
        ranks = self._meet("start")
        if self.rank == 0 and not (self.out / "run.json").exists():
            write_run(self.out, describe_run(self.out, ranks or [rank_facts(0)]))
        if self._schedule is not None:
            facts = {"world_size": self.world_size, "run": self.out.resolve().name}
            self._windows = TraceWindows(
                self._schedule,
                self.out,
                self.rank,
                facts=facts,
                size=TraceSize(self._models),
                store=clocks.default_store() if self.world_size > 1 else None,
                gaps=self.gaps,
            )

    def _finish(self, *, failed: bool) -> None:
        ends: list[Callable[[], object]] = [handle.remove for handle in self._handles]
        if self._windows is not None:
            ends.append(self._windows.close)
        if not failed:
            ends.append(lambda: self._meet("end"))
        if self._writer is not None:
            ends.append(self._writer.close)
        interrupt: BaseException | None = None
        for end in ends:  # the others are to end all the same
            try:
                end()
            except Exception as error:
                self.gaps.add("the end of the observation", error)
            except BaseException as error:  # Ctrl-C, or a launcher that stops this rank while it leaves
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def _meet(self, when: str) -> list[dict[str, Any]] | None:
        """Exchange the ranks' facts and measure their clocks; None when there is nobody to meet."""
        if not self._measure_clock:
            return None
        ranks = clocks.announce(f"moescope/{when}", rank_facts(self.rank), ANNOUNCE_TIMEOUT_S)
        if ranks is None:
            self.gaps.add(f"clock offsets at the {when}", "not every rank observes")
            self._measure_clock = False
            return None
        if when == "start":
            self._clock_peers = clocks.peers_to_measure([facts["host"] for facts in ranks])
            self._clock_group = dist.new_group(backend="gloo") if dist.get_backend() != "gloo" else None
        rows = clocks.measure(self._clock_peers, when, self._clock_group)
        if rows and self._writer is not None:
            self._writer.put(lambda: [("clock", list(rows))])
        return ranks

    @_harmless("the start of a step")
    def _begin(self, microbatches: int = 1) -> None:
        try:
            if self._windows is not None:
                self._windows.begin_step(self.current_step, microbatches)
            if self._cuda:
                torch.cuda.reset_peak_memory_stats()
        finally:
            self._record.start_ns = time.time_ns()

    @_harmless("a step")
    def _hand_over(self, values: dict[str, Tensor | float | None], tokens: int | None) -> None:
        record = self._record
        record.tokens = tokens
        record.sizes = self._sizes.now(self.current_step)
        if self._cuda:
            record.memory_peak = (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
        if self._writer is not None:
            self._writer.put(record.seal(values, self._stamps.end_step()))

    @_harmless("expert counts")
    def _on_routing(self, layer: int, module: nn.Module, find: Callable[[], Routing | None]) -> None:
        if not module.training or not self._counts_now():
            return
        routing = find()
        if routing is not None:
            self._add_routing(layer, routing)

    def _counts_now(self) -> bool:
        """Whether a forward pass now is a step's own: not recomputed in a backward pass, not after the step's end."""
        return self._record.end_ns is None and not in_backward() and not torch.is_inference_mode_enabled()

    def _add_routing(self, layer: int, routing: Routing) -> None:
        if self._counts_now():
            microbatch = self._microbatch_of(layer)
            figured = 1 if self.tracing else FIGURED_MICROBATCHES
            figures = router_figures(routing) if microbatch < figured else None
            self._record.add_load(microbatch, layer, routing, figures)

    def _microbatch_of(self, layer: int) -> int:
        """The microbatch being trained on: as marked, else as many as this layer has seen in this step.

        Counted by layer, since the chunks of a pipeline stage take the microbatches up one after the other.
        """
        if self._markers == 0:
            inferred = self._record.num_loads(layer)
            if inferred > 0:
                self.gaps.add("microbatch markers", "obs.microbatch() was not called; inferred from layers that repeat")
            self.current_microbatch = inferred
        return self.current_microbatch


def observe(
    model: nn.Module | Sequence[nn.Module],
    *,
    out: str | Path,
    profile: Schedule | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    moe_layers: MoELayers = framework_layers,
    first_step: int = 0,
    measure_clock: bool = True,
    flush_steps: int = 50,
    flush_seconds: float = 10.0,
) -> Observation:
    """Observe the training of ``model``, or of several chunks of one, on every rank, as a context manager.

    ``out``: the run directory. ``profile``: which steps to trace; none if omitted. ``optimizer``: to record what it
    holds. ``moe_layers``: where to read expert counts, for models that no framework known to
    :mod:`moescope_hooks.frameworks` made; see :class:`moescope_hooks.Attachment`. ``first_step``: number of the first
    step. ``measure_clock``: measure the offsets of the ranks' clocks at the start and the end. Telemetry is flushed
    every ``flush_steps`` steps or ``flush_seconds`` seconds, whichever comes first.
    """
    return Observation(
        (model,) if isinstance(model, nn.Module) else tuple(model),
        Path(out),
        profile=profile,
        optimizer=optimizer,
        moe_layers=moe_layers,
        first_step=first_step,
        measure_clock=measure_clock,
        flush_steps=flush_steps,
        flush_seconds=flush_seconds,
    )
