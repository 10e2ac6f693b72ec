"""Two runs side by side: step parts, waits, load, memory and rates, each with the noise between steps.

A difference counts as real when it exceeds twice the standard error of the difference of the two means over steps,
``2 * sqrt(var_a / n_a + var_b / n_b)``, the band that about 95 % of repetitions of one and the same run would stay in.
With a single step on either side there is no band, and the difference is only shown.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from moescope.findings import Finding
from moescope.views.model import Analysis, Json
from moescope.views.text import basis, plural, ranges

HIGHER_IS_BETTER = frozenset({"tokens_per_s", "mfu"})
NEUTRAL = frozenset(
    {"maxvio_rank_floor", "world_size", "active_params", "total_params", "steps", "tokens", "flops_per_token"}
    | {"shared_loss", "balance"}
)
LOSS_STEPS = 5
"""Steps over whose mean a training loss counts as reached."""
CONFIG_SECTIONS = (
    "command",
    "git_commit",
    "versions",
    "hosts",
    "devices",
    "model",
    "parallel",
    "train",
    "data",
    "seeds",
)
NUM_STANDARD_ERRORS = 2.0


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of both runs."""

    metric: str
    """The unit stands in the name: ``step_ns``, ``part_ns:comm.all_to_all.transfer``, ``tokens_per_s``."""
    a: float | None
    b: float | None
    difference: float | None
    """b - a."""
    relative: float | None
    """(b - a) / a."""
    noise: float | None
    """Half width of the band that noise between steps explains; ``None`` with fewer than two steps."""
    verdict: str
    """``better``, ``worse``, ``changed``, ``within noise``, ``same`` or ``unknown``."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One value of run.json that differs; ``None`` where the run lacks it."""

    name: str
    a: Json
    b: Json


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs."""

    name: str
    path: str
    basis: str
    controls: tuple[str, ...]
    num_ranks: int
    num_steps: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Run b against run a."""

    a: Side
    b: Side
    changes: tuple[Change, ...]
    new_findings: tuple[Finding, ...]
    """In b, of a code and rank that a does not have."""
    gone_findings: tuple[Finding, ...]
    settings: tuple[Setting, ...]
    misfits: tuple[str, ...] = ()
    """In what kind the runs differ, so that their figures say little about a change; empty for two of one kind."""


def compare(a: Analysis, b: Analysis, to_loss: float | None = None) -> Comparison:
    """Return what changed from run ``a`` to run ``b``.

    ``to_loss``: the training loss to which time and tokens are compared; the lowest that both reach if omitted.
    """
    samples_a, samples_b = samples(a), samples(b)
    target = shared_loss(a, b) if to_loss is None else to_loss
    if target is not None:
        samples_a |= _until(a, target)
        samples_b |= _until(b, target)
    names = [*samples_a, *(name for name in samples_b if name not in samples_a)]
    keys_a, keys_b = ({(f.code, f.rank) for f in run.findings} for run in (a, b))
    return Comparison(
        a=side(a),
        b=side(b),
        changes=tuple(change(name, samples_a.get(name, ()), samples_b.get(name, ())) for name in names),
        new_findings=tuple(f for f in b.findings if (f.code, f.rank) not in keys_a),
        gone_findings=tuple(f for f in a.findings if (f.code, f.rank) not in keys_b),
        settings=tuple(differing_settings(a.provenance, b.provenance)),
        misfits=tuple(_misfits(a, b)),
    )


def _misfits(a: Analysis, b: Analysis) -> Iterator[str]:
    """Yield a sentence for each difference in kind: how recorded, on what, by how many."""
    if (a.basis == "simulated") != (b.basis == "simulated"):
        yield f"A is {basis(a.basis)}, B {basis(b.basis)}."
    devices_a, devices_b = (sorted({source.device for source in run.sources}) for run in (a, b))
    if devices_a != devices_b and devices_a and devices_b:
        yield f"A ran on {', '.join(devices_a)}, B on {', '.join(devices_b)}."
    if a.world_size != b.world_size:
        yield f"A has {plural(a.world_size, 'rank')}, B {plural(b.world_size, 'rank')}."
    ranks_a, ranks_b = ({source.rank for source in run.sources} for run in (a, b))
    if a.world_size == b.world_size and ranks_a != ranks_b:
        yield f"The traces are of other ranks: A of {ranges(tuple(ranks_a))}, B of {ranges(tuple(ranks_b))}."


def side(run: Analysis) -> Side:
    """Return what identifies a run."""
    ranks = {source.rank for source in run.sources}
    return Side(run.name, run.path, run.basis, run.controls, len(ranks), len(run.steps))


def samples(run: Analysis) -> dict[str, Sequence[float]]:
    """Return each figure's value in every step, or its single value where it belongs to no step."""
    found: dict[str, Sequence[float]] = {"step_ns": [float(step.window_ns) for step in run.steps]}
    found |= _telemetry_samples(run)
    found |= {f"part_ns:{part}": values for part, values in _part_samples(run).items() if any(values)}
    found |= _wait_samples(run)
    found |= {name: [value] for name, value in _single_values(run)}
    return {name: values for name, values in found.items() if values}


def shared_loss(a: Analysis, b: Analysis) -> float | None:
    """Return the lowest training loss that both runs reach; ``None`` where one recorded no losses."""
    reached = [[loss for loss, _, _ in _loss_curve(run)] for run in (a, b)]
    return max(min(losses) for losses in reached) if all(reached) else None


def _until(run: Analysis, target: float) -> dict[str, Sequence[float]]:
    """Time and tokens that the run trained until it reached ``target``; nothing where it never did."""
    for loss, time_ns, tokens in _loss_curve(run):
        if loss <= target:
            return {"shared_loss": [target], "time_to_shared_loss_ns": [time_ns], "tokens_to_shared_loss": [tokens]}
    return {}


def _loss_curve(run: Analysis) -> Iterator[tuple[float, float, float]]:
    """Mean loss of the last LOSS_STEPS steps, and time and tokens trained so far, step by step."""
    losses: list[float] = []
    time_ns = tokens = 0.0
    for step in run.telemetry:
        time_ns += step.duration_ns
        tokens += step.tokens
        if step.loss is not None:
            losses.append(step.loss)
            if len(losses) >= LOSS_STEPS:
                yield statistics.fmean(losses[-LOSS_STEPS:]), time_ns, tokens


def _part_samples(run: Analysis) -> dict[str, list[float]]:
    """Mean over ranks per step."""
    by_step: dict[str, dict[int, list[int]]] = {}
    for row in run.ranks:
        for part, ns in row.parts_ns.items():
            by_step.setdefault(part, {}).setdefault(row.step, []).append(ns)
    return {part: [statistics.fmean(values) for values in steps.values()] for part, steps in by_step.items()}


def _wait_samples(run: Analysis) -> dict[str, list[float]]:
    ranks = max(len({wait.rank for wait in run.waits}), 1)
    totals: dict[str, dict[int, float]] = {"arrival_wait_ns": {}, "removable_wait_ns": {}, "transfer_ns": {}}
    for wait in run.waits:
        for name, steps in totals.items():
            steps[wait.step] = steps.get(wait.step, 0.0) + getattr(wait, name) / ranks
    return {name: list(steps.values()) for name, steps in totals.items()}


def _telemetry_samples(run: Analysis) -> dict[str, list[float]]:
    """Rates of unprofiled steps, which the profiler does not slow; the first step, which warms up, left out."""
    steps = [step for step in run.telemetry[1:] if not step.profiled and step.duration_ns > 0]
    return {
        "telemetry_step_ns": [float(step.duration_ns) for step in steps],
        "tokens_per_s": [step.tokens / step.duration_ns * 1e9 for step in steps if step.tokens],
    }


def _single_values(run: Analysis) -> Iterator[tuple[str, float]]:
    if run.load is not None:
        yield "maxvio_rank", run.load.maxvio_rank
        yield "maxvio_rank_floor", run.load.maxvio_rank_floor
        if run.load.cost_ns_per_step is not None:
            yield "uneven_expert_time_ns", float(run.load.cost_ns_per_step)
    if run.memory:
        yield "peak_allocated_bytes", float(max(memory.allocated_peak_bytes for memory in run.memory))
    losses = [step.loss for step in run.telemetry if step.loss is not None]
    if losses:
        yield "last_loss", losses[-1]
    result = run.provenance.get("result")
    for name, value in result.items() if isinstance(result, Mapping) else ():
        parts = value.items() if isinstance(value, Mapping) else ()
        for key, number in ((str(name), value), *((f"{_family(str(name))}:{part}", one) for part, one in parts)):
            if isinstance(number, int | float) and not isinstance(number, bool) and key != "tokens_per_s":
                yield key, float(number)


def _family(name: str) -> str:
    """``validation_loss_by_domain`` holds a ``validation_loss:code``, and so on."""
    return name.partition("_by_")[0]


def change(metric: str, a: Sequence[float], b: Sequence[float]) -> Change:
    """Compare the samples of one figure."""
    if not a or not b:
        mean_a, mean_b = (statistics.fmean(values) if values else None for values in (a, b))
        return Change(metric, mean_a, mean_b, None, None, None, "unknown")
    mean_a, mean_b = statistics.fmean(a), statistics.fmean(b)
    difference = mean_b - mean_a
    relative = difference / abs(mean_a) if mean_a else None
    noise = None
    if len(a) > 1 and len(b) > 1:
        noise = NUM_STANDARD_ERRORS * math.sqrt(statistics.variance(a) / len(a) + statistics.variance(b) / len(b))
    return Change(metric, mean_a, mean_b, difference, relative, noise, _verdict(metric, difference, noise))


def _verdict(metric: str, difference: float, noise: float | None) -> str:
    if difference == 0:
        return "same"
    if noise is not None and abs(difference) <= noise:
        return "within noise"
    if metric in NEUTRAL or metric.startswith("part_ns:compute."):
        return "changed"
    return "better" if (difference > 0) == (metric in HIGHER_IS_BETTER) else "worse"


def differing_settings(a: Mapping[str, Json], b: Mapping[str, Json]) -> Iterator[Setting]:
    """Yield the values of run.json that differ, by dotted name; results and times of creation are no settings."""
    flat_a, flat_b = (dict(_flatten({key: _kept(run[key]) for key in CONFIG_SECTIONS if key in run})) for run in (a, b))
    for name in [*flat_a, *(name for name in flat_b if name not in flat_a)]:
        if flat_a.get(name) != flat_b.get(name):
            yield Setting(name, flat_a.get(name), flat_b.get(name))


def _kept(value: Json) -> Json:
    """A section without the numbers of its processes, which differ from run to run."""
    if not isinstance(value, list):
        return value
    return [{k: v for k, v in item.items() if k != "pid"} if isinstance(item, dict) else item for item in value]


def _flatten(value: Json, name: str = "") -> Iterator[tuple[str, Json]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flatten(item, f"{name}.{key}" if name else str(key))
    else:
        yield name, value
