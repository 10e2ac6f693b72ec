"""Tables into the dataclasses of the view model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import polars as pl

from moescope.align import Alignment
from moescope.attribution import Attribution, RankProfile
from moescope.attribution.labels import PARTS
from moescope.attribution.load import Counts, intervals
from moescope.attribution.unions import DeviceUnions
from moescope.telemetry import Telemetry
from moescope.trace import TraceDirectory
from moescope.views.model import (
    Clock,
    Json,
    RankStep,
    Source,
    Step,
    TelemetryStep,
    Unions,
)


def sources(directory: TraceDirectory, host_of_rank: Mapping[int, str], alignment: Alignment) -> tuple[Source, ...]:
    """One entry per trace window, on the common clock."""
    return tuple(
        Source(
            rank=trace.rank,
            window=trace.window,
            file=trace.file,
            host=host_of_rank.get(trace.rank, ""),
            device=trace.device,
            start_ns=alignment.clock_of(trace.rank).common_ns(trace.start_ns),
            end_ns=alignment.clock_of(trace.rank).common_ns(trace.end_ns),
            num_events=trace.num_events,
            num_device_events=trace.num_device_events,
            problems=tuple(str(problem) for problem in trace.problems),
        )
        for trace in directory.ranks
    )


def steps(attribution: Attribution) -> tuple[Step, ...]:
    """Profiled steps over all ranks."""
    ranks = attribution.parts.unique(["rank", "step"])
    table = ranks.group_by("step").agg(
        pl.col("window_ns").max(), num_ranks=pl.col("rank").n_unique(), start_ns=pl.col("start_ns").min()
    )
    return tuple(
        Step(step=step, window_ns=window, num_ranks=num_ranks, start_ns=start)
        for step, window, num_ranks, start in table.sort("step").rows()
    )


def rank_steps(
    attribution: Attribution, profiles: Sequence[RankProfile], host_of_rank: Mapping[int, str]
) -> tuple[RankStep, ...]:
    """Every rank's step by parts; every part is there, unused ones with 0."""
    of_rank = {profile.rank: profile for profile in profiles}
    unions = {rank: _unions([p.unions for p in profiles if p.rank == rank]) for rank in of_rank}
    out = []
    for (rank, step), rows in attribution.parts.group_by(["rank", "step"], maintain_order=True):
        spent = dict(rows.select("part", "ns").rows())
        key = int(rank)
        out.append(
            RankStep(
                rank=key,
                host=host_of_rank.get(key, ""),
                device=of_rank[key].device,
                step=int(step),
                start_ns=int(rows["start_ns"][0]),
                window_ns=int(rows["window_ns"][0]),
                parts_ns={part: int(spent.get(part, 0)) for part in PARTS},
                unions_ns=unions[key],
            )
        )
    return tuple(out)


def _unions(windows: Sequence[DeviceUnions]) -> Unions:
    """A rank's unions, summed over its windows, which do not overlap."""
    keys = asdict(windows[0])
    return Unions(**{key: sum(getattr(window, key) for window in windows) for key in keys})


def clocks(alignment: Alignment) -> tuple[Clock, ...]:
    """One clock per host."""
    return tuple(
        Clock(
            host=clock.host,
            ranks=clock.ranks,
            offset_ns=round(clock.offset_ns),
            drift_ppm=clock.drift * 1e6,
            low_ns=clock.low_ns,
            high_ns=clock.high_ns,
            method=clock.method,
            num_anchors=clock.num_anchors,
            origin_ns=clock.origin_ns,
        )
        for clock in alignment.clocks
    )


def telemetry_steps(
    telemetry: Telemetry | None, counts: Counts | None, attribution: Attribution
) -> tuple[TelemetryStep, ...]:
    """Every training step the hooks saw."""
    if telemetry is None or telemetry.step.is_empty():
        return ()
    profiled = set(attribution.parts["step"].unique().to_list())
    table = telemetry.step.group_by("step", maintain_order=True).agg(
        pl.col("start_ns").min(),
        duration_ns=(pl.col("end_ns") - pl.col("start_ns")).max(),
        tokens=pl.col("tokens").sum(),
        loss=pl.col("loss").mean(),
        gradient_norm=pl.col("gradient_norm").mean(),
    )
    violation: dict[int, float] = {}
    if counts is not None:
        per_step = intervals(counts).group_by("step", maintain_order=True).agg(pl.col("maxvio_rank").mean())
        violation = dict(per_step.rows())
    return tuple(
        TelemetryStep(**row, maxvio_rank=violation.get(row["step"]), profiled=row["step"] in profiled)
        for row in table.sort("step").iter_rows(named=True)
    )


def provenance(run: Mapping[str, Any]) -> Mapping[str, Json]:
    """run.json as it was read."""
    return dict(run)
