"""What the rules need, gathered; and what the input lacks, said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from moescope.align import Alignment
from moescope.align.baseline import Baseline
from moescope.attribution import Attribution, RankProfile
from moescope.attribution.gemm.ranks import Gemms
from moescope.attribution.labels import Label
from moescope.attribution.load import Counts, intervals
from moescope.findings import Inputs
from moescope.telemetry import Telemetry
from moescope.trace import Problem, TraceDirectory
from moescope.views.assemble.gemm import critical_loss_ns
from moescope.views.model import Load, Missing
from moescope.views.model.memory import TokenMemory


def finding_inputs(
    directory: TraceDirectory,
    telemetry: Telemetry | None,
    profiles: Sequence[RankProfile],
    *,
    alignment: Alignment,
    attribution: Attribution,
    counts: Counts | None,
    load: Load | None,
    gemms: Gemms | None,
    baseline: Baseline | None,
    tokens: Sequence[TokenMemory],
    basis: str,
    world_size: int,
) -> Inputs:
    """Inputs of the rules."""
    table = _of_profiled_steps(intervals(counts), attribution) if counts is not None else pl.DataFrame()
    problems = [str(problem) for problem in directory.problems]
    problems += list(telemetry.problems) if telemetry is not None else []
    return Inputs(
        basis=basis,
        world_size=world_size,
        ranks=tuple(sorted({profile.rank for profile in profiles})),
        alignment=alignment,
        attribution=attribution,
        load_intervals=table,
        load_floor_rank=load.maxvio_rank_floor if load is not None else 0.0,
        load_source=counts.source if counts is not None else "",
        memory={profile.rank: profile.memory for profile in profiles if profile.memory is not None},
        problems=problems,
        load_layers=_load_layers(load),
        gemms=gemms,
        baseline=baseline,
        allocator={profile.rank: profile.allocator for profile in profiles},
        token_memory={row.rank: _token_evidence(row) for row in tokens},
        idle_causes=_idle_causes(profiles),
        gemm_path_loss_ns=critical_loss_ns(gemms, attribution, alignment) if gemms is not None else None,
    )


def _token_evidence(row: TokenMemory) -> dict[str, float | None]:
    names = ("tokens", "tokens_over_mean", "bytes_per_token", "tokens_at_limit", "tokens_at_limit_low")
    return {name: getattr(row, name) for name in names}


def _idle_causes(profiles: Sequence[RankProfile]) -> pl.DataFrame:
    frames = [
        profile.idle_causes.select(
            "kind",
            "operation",
            "detail",
            rank=pl.lit(profile.rank, pl.Int64),
            ns_per_step=pl.col("ns") / max(len(profile.windows), 1),
        )
        for profile in profiles
    ]
    return pl.concat(frames) if frames else pl.DataFrame()


def _of_profiled_steps(table: pl.DataFrame, attribution: Attribution) -> pl.DataFrame:
    """The intervals of the steps whose cost is known; all of them where telemetry and traces share no step."""
    profiled = table.filter(pl.col("step").is_in(attribution.parts["step"].unique().implode()))
    return table if profiled.is_empty() else profiled


def _load_layers(load: Load | None) -> pl.DataFrame:
    schema = {"layer": pl.Int64, "entropy": pl.Float64, "dead_share": pl.Float64, "dropped_share": pl.Float64}
    rows = [
        (
            layer.layer,
            layer.entropy,
            layer.num_dead_experts / len(layer.expert_tokens) if layer.num_dead_experts is not None else None,
            layer.dropped_share,
        )
        for layer in (load.layers if load is not None else ())
    ]
    return pl.DataFrame(rows, schema=schema, orient="row")


def missing(
    directory: TraceDirectory,
    telemetry: Telemetry | None,
    profiles: Sequence[RankProfile],
    *,
    alignment: Alignment,
    counts: Counts | None,
    snapshots: Sequence[Problem],
    world_size: int,
) -> tuple[Missing, ...]:
    """Everything the input lacks, with the question it leaves open and how to record it.

    ``snapshots``: what kept memory snapshots from being read.
    """
    return tuple(
        [
            *_ranks(profiles, world_size),
            *_damage(directory, telemetry),
            *_device(profiles),
            *_collectives(alignment, profiles),
            *_load(telemetry, counts),
            *_shapes(profiles),
            *_memory(profiles),
            *_snapshots(snapshots),
        ]
    )


def _ranks(profiles: Sequence[RankProfile], world_size: int) -> Iterator[Missing]:
    present = {profile.rank for profile in profiles}
    absent = sorted(set(range(world_size)) - present)
    if absent:
        few = ", ".join(map(str, absent[:8])) + (", ..." if len(absent) > 8 else "")
        yield Missing(
            what=f"traces of {len(absent)} of {world_size} ranks (ranks {few})",
            why="waits for them and their own parts are unknown; time spent waiting for them counts as transfer",
            how_to_record="Profile the same steps on every rank, and put all files into one folder.",
        )
    if not any(profile.has_step_marks for profile in profiles):
        yield Missing(
            what="step markers",
            why="the whole file is taken as one step; costs are per file, not per step",
            how_to_record="Call profiler.step() after every training step, or use the hooks' obs.step().",
        )


def _damage(directory: TraceDirectory, telemetry: Telemetry | None) -> Iterator[Missing]:
    for problem in directory.problems:
        yield Missing(
            what=str(problem),
            why=problem.effect or "what was lost there is in no number",
            how_to_record="Record the window again, or copy the file again if it was cut on the way.",
        )
    for text in telemetry.problems if telemetry is not None else []:
        yield Missing(what=text, why="telemetry is incomplete there", how_to_record="See the training job's own log.")


def _device(profiles: Sequence[RankProfile]) -> Iterator[Missing]:
    if any(not profile.on_gpu for profile in profiles):
        yield Missing(
            what="device events (a host-only trace)",
            why="the threads that run operations stand for the device; kernels, copies and their overlap are unknown",
            how_to_record="On a GPU, add ProfilerActivity.CUDA to the profiler's activities; on a CPU run nothing is "
            "missing.",
        )


def _collectives(alignment: Alignment, profiles: Sequence[RankProfile]) -> Iterator[Missing]:
    if all(profile.instances.is_empty() for profile in profiles):
        yield Missing(
            what="collectives",
            why="waits, transfers and clocks cannot be found",
            how_to_record="Profile steps in which the ranks communicate, with CPU activity on.",
        )
    if any((profile.segments["label"] == int(Label.COMM_WAIT)).any() for profile in profiles):
        yield Missing(
            what="arrivals at DeepEP's exchanges",
            why="its notify kernels hold the barrier across ranks, so their whole duration counts as removable wait, "
            "by their name alone; for whom they waited, and how much moved meanwhile, is not recorded",
            how_to_record="Attach the hooks, which record every rank's arrival at dispatch and combine.",
        )
    unknown = sum(len(profile.instances.filter(kind="p2p").filter(pl.col("peer").is_null())) for profile in profiles)
    if unknown:
        yield Missing(
            what=f"the other side of {unknown} point-to-point messages",
            why="for whom ranks waited in them is unknown, so waiting in them counts as transfer",
            how_to_record="Send and receive one by one, or in batches with a single rank, on CUDA devices with the "
            "profiler's CPU activity on.",
        )
    for refusal in alignment.refusals:
        yield Missing(
            what=f"a match for {refusal.num_collectives} collectives of group {refusal.group}",
            why=f"{refusal.reason}; they take no part in waits",
            how_to_record="Record with a torch that stores sequence numbers (2.12 or later), or with "
            "record_shapes=True.",
        )


def _load(telemetry: Telemetry | None, counts: Counts | None) -> Iterator[Missing]:
    if counts is None:
        yield Missing(
            what="expert counts",
            why="load per expert and rank is unknown, and expert load cannot be told from a slow rank",
            how_to_record="Attach the hooks (moescope_hooks.observe), or record all-to-all split sizes with "
            "record_shapes=True.",
        )
    elif counts.source != "telemetry":
        yield Missing(
            what="counts per expert",
            why="load is known per rank only, from "
            + ("the exchanges' split sizes" if counts.source == "splits" else "the shapes of grouped products"),
            how_to_record="Attach the hooks (moescope_hooks.observe).",
        )
    if telemetry is None:
        yield Missing(
            what="run.json and telemetry",
            why="configuration, losses and steps outside the profiled window are unknown",
            how_to_record="Attach the hooks (moescope_hooks.observe), which write both.",
        )


def _shapes(profiles: Sequence[RankProfile]) -> Iterator[Missing]:
    if all(profile.gemms.is_empty() for profile in profiles):
        yield Missing(
            what="shapes of matrix products",
            why="their FLOPs, rates and what small ones lose are unknown",
            how_to_record="Pass record_shapes=True to torch.profiler, or use the hooks. Kernels that a captured graph "
            "or a compiled region launches carry none.",
        )


def _memory(profiles: Sequence[RankProfile]) -> Iterator[Missing]:
    if all(profile.memory is None for profile in profiles):
        yield Missing(
            what="memory events",
            why="peaks, and what was live at them, are unknown",
            how_to_record="Pass profile_memory=True to torch.profiler, or use the hooks.",
        )


def _snapshots(problems: Sequence[Problem]) -> Iterator[Missing]:
    for problem in problems:
        yield Missing(
            what=f"{problem.file}: {problem.what}",
            why=problem.effect,
            how_to_record="Dump it again with torch.cuda.memory._dump_snapshot, the rank in the file's name; fewer "
            "max_entries in _record_memory_history make it smaller.",
        )
