"""What a folder holds: which ranks, hosts, groups, steps and recordings, before any analysis."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from moescope.align import Contradiction
from moescope.intake import valid_text
from moescope.telemetry import Telemetry, open_telemetry
from moescope.trace import RankTrace, TraceDirectory, compiled, open_directory
from moescope.trace.snapshots import open_snapshots
from moescope.views.hosts import HostGroups, contradicted_hosts, hosts_of

_COMMUNICATION_RANGES = r"^(c10d::|nccl:|gloo:|mpi:|record_param_comms)"
_STEP = r"^ProfilerStep\s*#\s*(\d+)"
_COLUMNS = ("category", "kind", "name", "correlation", "input_dims", "concrete_inputs")


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """What one rank's trace window holds."""

    rank: int
    window: int
    file: str
    """Relative to the folder."""
    host: str | None
    device: str
    start_ns: int
    end_ns: int
    num_events: int
    num_device_events: int
    steps: tuple[int, ...]
    """Numbers of the steps marked by ``prof.step()``."""
    num_collectives: int
    """Communication kernels, or communication ranges where there is no device."""
    sizes: str
    """``recorded`` with the kernels, ``from shapes`` of the calling operations, or ``none``."""
    has_splits: bool
    """Rows sent to and received from each peer are known for some all-to-all."""
    lists_cut: bool
    """The profiler cut some list of ranks or splits after 30 entries."""
    has_shapes: bool
    has_memory: bool
    has_launches: bool
    has_ranges: bool
    """Ranges that name layer, microbatch and phase."""
    is_incomplete: bool
    """Something that was recorded could not be read; ``problems`` say what."""
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The ranks of one host; ``host`` is ``None`` for ranks whose trace names none."""

    host: str | None
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """One process group as the traces describe it."""

    name: str
    description: str
    ranks: tuple[int, ...]
    """Empty where no trace lists them all."""
    num_present: int
    """Ranks of the group that have a trace."""


@dataclass(frozen=True, slots=True)
class TelemetryFacts:
    """What the hooks recorded beside the traces."""

    rows: dict[str, int]
    """Table -> rows."""
    steps: tuple[int, int] | None
    """First and last step."""
    ranks: tuple[int, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Inventory:
    """Everything :func:`take_inventory` found."""

    path: str
    basis: str
    controls: tuple[str, ...]
    world_size: int | None
    missing_ranks: tuple[int, ...]
    traces: tuple[TraceFacts, ...]
    hosts: tuple[HostFacts, ...]
    groups: tuple[GroupFacts, ...]
    telemetry: TelemetryFacts | None
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    contradictions: tuple[Contradiction, ...] = ()
    """Hosts whose ranks cannot share a clock."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have a trace."""
        return tuple(sorted({trace.rank for trace in self.traces}))


def take_inventory(
    path: str | os.PathLike[str],
    *,
    hosts: HostGroups | None = None,
    rank_regex: str | None = None,
    workers: int | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Inventory:
    """Read every trace and table under ``path`` and return what they hold.

    ``hosts``: ranks that share a clock, one sequence per host, where the traces do not say.
    Raises :class:`moescope.errors.InputUnreadableError` when nothing useful could be read, ``DataMissingError`` when
    ``hosts`` names no rank that is there.
    """
    directory = open_directory(path, rank_regex=rank_regex, workers=workers, progress=progress)
    telemetry = open_telemetry(Path(path))
    run = telemetry.run if telemetry is not None else {}
    ranks = {trace.rank for trace in directory.ranks}
    host_of_rank = hosts_of(directory.ranks, hosts)
    world_size = max((trace.world_size for trace in directory.ranks if trace.world_size), default=None)
    return Inventory(
        path=valid_text(str(path)),
        basis=str(run.get("basis", "unknown")),
        controls=tuple(map(str, run.get("controls", ()))),
        world_size=world_size,
        missing_ranks=tuple(sorted(set(range(world_size or 0)) - ranks)),
        traces=tuple(trace_facts(trace) for trace in directory.ranks),
        hosts=_hosts(host_of_rank),
        groups=_groups(directory, ranks),
        telemetry=None if telemetry is None else telemetry_facts(telemetry),
        problems=tuple(str(problem) for problem in directory.problems),
        notes=(
            *(note for note in directory.notes if not note.startswith("run.json ")),
            *_snapshots(directory),
            *_slow(),
        ),
        contradictions=contradicted_hosts(directory.ranks, host_of_rank),
    )


def _slow() -> Iterator[str]:
    if not compiled.is_available():
        yield (
            "the compiled part of the reader was not built here: new files take several times as long; "
            "with a C compiler and Python's headers, install moescope again"
        )


def trace_facts(trace: RankTrace) -> TraceFacts:
    """Return what one trace holds; reads the columns it needs and keeps none."""
    events = trace.events(_COLUMNS)
    comm = trace.comm_args()
    facts = events.select(
        device=((pl.col("kind") == "communication") & pl.col("category").is_in(["kernel", "copy"])).sum(),
        host=((pl.col("kind") == "communication") & ~pl.col("category").is_in(["kernel", "copy"])).sum(),
        shapes=pl.col("input_dims").is_not_null().any(),
        launches=((pl.col("category") == "runtime") & pl.col("correlation").is_not_null()).any(),
    ).row(0, named=True)
    names = events.select(pl.col("name").unique().cast(pl.String))["name"]
    in_calls = events.filter(
        pl.col("input_dims").is_not_null() & pl.col("name").cast(pl.String).str.contains(_COMMUNICATION_RANGES)
    )
    split_calls = in_calls.filter(
        pl.col("name").cast(pl.String).str.contains("alltoall|all_to_all") & pl.col("concrete_inputs").is_not_null()
    )
    sized = "recorded" if comm["in_nelems"].is_not_null().any() else "from shapes" if len(in_calls) else "none"
    steps = names.str.extract(_STEP).cast(pl.Int64, strict=False).drop_nulls().unique().sort()
    return TraceFacts(
        rank=trace.rank,
        window=trace.window,
        file=trace.file,
        host=trace.host,
        device=trace.device,
        start_ns=trace.start_ns,
        end_ns=trace.end_ns,
        num_events=trace.num_events,
        num_device_events=trace.num_device_events,
        steps=tuple(steps.to_list()),
        num_collectives=facts["device"] or facts["host"] or 0,
        sizes=sized,
        has_splits=comm["in_splits"].is_not_null().any() or len(split_calls) > 0,
        lists_cut=bool(comm["lists_cut"].any()),
        has_shapes=bool(facts["shapes"]),
        has_memory=not trace.memory().is_empty(),
        has_launches=bool(facts["launches"]),
        has_ranges=names.str.starts_with("moescope::").any(),
        is_incomplete=any(problem.loses_data for problem in trace.problems),
        problems=tuple(str(problem) for problem in trace.problems),
    )


def telemetry_facts(telemetry: Telemetry) -> TelemetryFacts:
    """Return how much the hooks recorded, and of which steps and ranks."""
    tables = {
        "expert_load": telemetry.expert_load,
        "collective": telemetry.collective,
        "step": telemetry.step,
        "clock": telemetry.clock,
        "library": telemetry.library,
    }
    with_step = [frame for frame in tables.values() if "step" in frame.columns and not frame.is_empty()]
    steps = [int(step) for frame in with_step for step in (frame["step"].min(), frame["step"].max())]  # type: ignore[arg-type]
    ranks = {int(rank) for frame in tables.values() if "rank" in frame.columns for rank in frame["rank"].unique()}
    return TelemetryFacts(
        rows={name: frame.height for name, frame in tables.items()},
        steps=(min(steps), max(steps)) if steps else None,
        ranks=tuple(sorted(ranks)),
        problems=tuple(telemetry.problems),
    )


def _hosts(host_of_rank: Mapping[int, str]) -> tuple[HostFacts, ...]:
    by_host: dict[str, list[int]] = {}
    for rank, host in sorted(host_of_rank.items()):
        by_host.setdefault(host, []).append(rank)
    return tuple(HostFacts(host or None, tuple(ranks)) for host, ranks in by_host.items())


def _groups(directory: TraceDirectory, present: set[int]) -> tuple[GroupFacts, ...]:
    groups = {}
    for trace in directory.ranks:
        for group in trace.groups.values():
            groups[group.name, group.description, group.ranks] = group
    return tuple(
        GroupFacts(group.name, group.description, group.ranks, len(present & set(group.ranks)))
        for group in groups.values()
    )


def _snapshots(directory: TraceDirectory) -> list[str]:
    """What there is of the allocator's snapshots, and what keeps others from being read."""
    found, problems = open_snapshots(directory.path, sorted({trace.rank for trace in directory.ranks}))
    seen = [f"{one.file}: a memory snapshot of rank {one.rank}, {len(one.actions):,} actions" for one in found]
    return [*seen, *(f"{problem.file}: {problem.what}" for problem in problems)]
