"""One call from a directory to everything the outputs show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from moescope.align import Alignment, align_ranks
from moescope.align.baseline import Baseline, read_baseline
from moescope.align.groups import with_members
from moescope.align.links import data_sheet
from moescope.align.recorded_splits import with_recorded_splits
from moescope.attribution import Attribution, RankProfile, attribute, profile_rank
from moescope.attribution.load import Counts, counts_from_splits, counts_from_telemetry, expert_groups
from moescope.attribution.load_shapes import counts_from_shapes
from moescope.attribution.timeline import Timeline as Pieces
from moescope.findings import findings
from moescope.intake import valid_text
from moescope.telemetry import Telemetry, open_telemetry
from moescope.trace import RankTrace, TraceDirectory, open_directory
from moescope.trace.workers import available_cores, in_processes
from moescope.views import cache as results
from moescope.views.assemble import clocks, provenance, rank_steps, sources, steps, telemetry_steps
from moescope.views.assemble.causes import causes, critical_path, wait_edges, waits
from moescope.views.assemble.collectives import collectives
from moescope.views.assemble.gemm import find_gemms, gemm_view
from moescope.views.assemble.host import host_view
from moescope.views.assemble.load import load_view
from moescope.views.assemble.memory import memory, memory_use, open_snapshot_uses
from moescope.views.assemble.router import routers, traffic
from moescope.views.gather import finding_inputs, missing
from moescope.views.hosts import HostGroups, all_ranks, assumed_members, hosts_of
from moescope.views.library import library_collectives
from moescope.views.model import Analysis
from moescope.views.timeline import Timeline
from moescope.views.timeline.strip_file import beginning_ns, load_strips, make_strips, save_strips

Progress = Callable[[int, int, str], None]
PARALLEL_FROM_EVENTS = 400_000
"""Ranks are profiled in parallel processes when the folder holds more events than this."""


def analyze(
    path: str | Path,
    *,
    hosts: HostGroups | None = None,
    rank_regex: str | None = None,
    workers: int | None = None,
    cache: bool = True,
    baseline: str | Path | None = None,
    progress: Progress | None = None,
) -> Analysis:
    """Read, align, attribute and judge the traces and telemetry under ``path``.

    ``hosts``: ranks that share a clock, one sequence per host, where the traces do not say. ``rank_regex``: see
    ``trace.open_directory``. ``cache``: use and keep the result under ``.moescope/``. ``baseline``: a file of
    ``moescope baseline`` to hold the run against. ``progress(done, total, what)``.
    Raises ``InputUnreadableError`` when nothing could be read, ``DataMissingError`` when ``hosts`` names no rank
    that is there.
    """
    root = Path(path)
    measured = read_baseline(Path(baseline)) if baseline is not None else None
    stored = results.result_path(root, (hosts, rank_regex, measured)) if cache and root.exists() else None
    if stored is not None and (known := results.load(stored)) is not None:
        return replace(known, path=valid_text(str(root)))
    directory = open_directory(root, rank_regex=rank_regex, workers=workers, progress=progress)
    analysis, pieces = _analyze(
        directory, open_telemetry(root), hosts=hosts, workers=workers, baseline=measured, progress=progress
    )
    if stored is not None:
        save_strips(results.strips_path(stored), make_strips(pieces, beginning_ns(analysis)))
        results.save(stored, analysis)
    return analysis


def open_timeline(
    path: str | Path,
    analysis: Analysis,
    *,
    hosts: HostGroups | None = None,
    rank_regex: str | None = None,
    workers: int | None = None,
    cache: bool = True,
    baseline: str | Path | None = None,
    rename: Callable[[str], str] | None = None,
) -> Timeline:
    """Open the timeline of an analysed folder; the options are those of :func:`analyze`, which keeps what it needs.

    Where nothing was kept, or ``cache`` is off, the folder is analysed once more. ``rename`` changes the names of
    slices in tiles.
    """
    root = Path(path)
    measured = read_baseline(Path(baseline)) if baseline is not None else None
    kept = results.strips_path(results.result_path(root, (hosts, rank_regex, measured)))
    strips = load_strips(kept) if cache else None

    def directory() -> TraceDirectory:
        return open_directory(root, rank_regex=rank_regex, workers=workers)

    if strips is None:
        _, pieces = _analyze(directory(), open_telemetry(root), hosts=hosts, workers=workers, baseline=measured)
        strips = make_strips(pieces, beginning_ns(analysis))
    return Timeline(analysis, strips, directory, rename)


def analyze_directory(
    directory: TraceDirectory,
    telemetry: Telemetry | None,
    *,
    hosts: HostGroups | None = None,
    workers: int | None = None,
    baseline: Baseline | None = None,
    progress: Progress | None = None,
) -> Analysis:
    """The same for a directory that is already open."""
    return _analyze(directory, telemetry, hosts=hosts, workers=workers, baseline=baseline, progress=progress)[0]


def _analyze(
    directory: TraceDirectory,
    telemetry: Telemetry | None,
    *,
    hosts: HostGroups | None,
    workers: int | None,
    baseline: Baseline | None,
    progress: Progress | None = None,
) -> tuple[Analysis, Mapping[int, Pieces]]:
    """The analysis, and the pieces of every rank's time that its parts are sums of."""
    profiles = _profiles(directory.ranks, workers, progress)
    host_of_rank = hosts_of(directory.ranks, hosts)
    world = assumed_members(directory.ranks)
    members = [with_members(p.instances, t, world) for p, t in zip(profiles, directory.ranks, strict=True)]
    if telemetry is not None:
        members = [with_recorded_splits(rows, telemetry.collective) for rows in members]
    clock = telemetry.clock if telemetry is not None else None
    known = baseline.transfers if baseline is not None else None
    alignment = align_ranks(members, host_of_rank, clock, known, _link_rates(directory.ranks))
    attribution = attribute(profiles, alignment)
    analysis = _assemble(
        directory,
        telemetry,
        profiles,
        host_of_rank=host_of_rank,
        alignment=alignment,
        attribution=attribution,
        counts=_counts(telemetry, alignment, profiles),
        baseline=baseline,
    )
    return analysis, attribution.timelines


def _assemble(
    directory: TraceDirectory,
    telemetry: Telemetry | None,
    profiles: Sequence[RankProfile],
    *,
    host_of_rank: Mapping[int, str],
    alignment: Alignment,
    attribution: Attribution,
    counts: Counts | None,
    baseline: Baseline | None,
) -> Analysis:
    run = dict(telemetry.run) if telemetry is not None else {}
    load = load_view(counts, attribution) if counts is not None else None
    world_size = len(all_ranks(directory.ranks))
    basis = str(run.get("basis", "unknown"))
    gemms = find_gemms(profiles, telemetry, baseline)
    by_rank = memory(profiles, telemetry, directory, alignment)
    snapshots, unread = open_snapshot_uses(directory)
    use = memory_use(profiles, telemetry, counts, snapshots, by_rank)
    inputs = finding_inputs(
        directory,
        telemetry,
        profiles,
        alignment=alignment,
        attribution=attribution,
        counts=counts,
        load=load,
        gemms=gemms,
        baseline=baseline,
        tokens=use.tokens,
        basis=basis,
        world_size=world_size,
    )
    return Analysis(
        name=str(run.get("name") or valid_text(directory.path.resolve().name)),
        path=valid_text(str(directory.path)),
        basis=basis if basis in ("measured", "simulated") else "unknown",
        controls=tuple(map(str, run.get("controls", ()))),
        world_size=world_size,
        sources=sources(directory, host_of_rank, alignment),
        steps=steps(attribution),
        ranks=rank_steps(attribution, profiles, host_of_rank),
        clock=clocks(alignment),
        waits=waits(alignment),
        wait_edges=wait_edges(alignment, attribution.num_steps),
        causes=causes(attribution, alignment),
        critical_path=critical_path(attribution),
        findings=findings(inputs),
        missing=missing(
            directory, telemetry, profiles, alignment=alignment, counts=counts, snapshots=unread, world_size=world_size
        ),
        collectives=collectives(alignment),
        load=load,
        memory=by_rank,
        telemetry=telemetry_steps(telemetry, counts, attribution),
        provenance=provenance(run),
        gemm=gemm_view(gemms, attribution, alignment),
        host=host_view(profiles, alignment),
        memory_use=use,
        routers=routers(telemetry),
        traffic=traffic(telemetry, host_of_rank),
        library=library_collectives(telemetry.library) if telemetry is not None else (),
    )


def _profiles(traces: Sequence[RankTrace], workers: int | None, progress: Progress | None) -> list[RankProfile]:
    """Every rank profiled, in the order given; large folders in parallel processes."""
    show = progress or _show_nothing
    is_small = sum(trace.num_events for trace in traces) < PARALLEL_FROM_EVENTS
    num_workers = 1 if is_small else workers or available_cores()
    profiles = []
    for profile in in_processes(profile_rank, traces, num_workers):
        profiles.append(profile)
        show(len(profiles), len(traces), f"rank {profile.rank}")
    return profiles


def _show_nothing(_done: int, _total: int, _what: str) -> None:
    """Progress that nobody watches."""


def _link_rates(traces: Sequence[RankTrace]) -> dict[str, float]:
    """Bytes per ns of links within a host by the devices' data sheet, by tier; empty where one is unknown."""
    rates = [data_sheet(device) for device in {trace.device for trace in traces}]
    known = [rate for rate in rates if rate is not None]
    return {"within host": min(known)} if known and len(known) == len(rates) else {}


def _alone(telemetry: Telemetry, alignment: Alignment) -> list[list[int]]:
    """Every rank for itself, where no rank sends tokens to another: each computes all experts for its own tokens."""
    exchanges = (alignment.collectives["kind"] == "all_to_all").any()
    dispatches = (telemetry.collective["phase"] == "dispatch").any()
    ranks = telemetry.expert_load["rank"].unique().sort().to_list()
    return [] if exchanges or dispatches else [[rank] for rank in ranks]


def _counts(telemetry: Telemetry | None, alignment: Alignment, profiles: Sequence[RankProfile]) -> Counts | None:
    """Expert counts from telemetry, else rows from the exchanges' splits, else from grouped products' shapes."""
    if telemetry is not None:
        parallel = telemetry.run.get("parallel")
        parallel = parallel if isinstance(parallel, Mapping) else {}
        groups = parallel.get("ep_groups") or expert_groups(alignment.collectives) or _alone(telemetry, alignment)
        found = counts_from_telemetry(telemetry.expert_load, groups, parallel.get("expert_placement"))
        if found is not None:
            return found
    return counts_from_splits(alignment.collectives) or counts_from_shapes(profiles)
