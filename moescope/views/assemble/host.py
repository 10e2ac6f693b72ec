"""What the host did into the view model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moescope.align import Alignment
from moescope.attribution import RankProfile
from moescope.views.model.host import Host, IdleCause, Launches

MOST_CAUSES = 40
"""Of each rank; the rest is in the parts of the step."""


def host_view(profiles: Sequence[RankProfile], alignment: Alignment) -> Host:
    """All ranks; of several windows of a rank each is listed."""
    return Host(
        idle=tuple(row for profile in profiles for row in _idle(profile, alignment)),
        launches=tuple(row for profile in profiles for row in _launches(profile)),
    )


def _idle(profile: RankProfile, alignment: Alignment) -> Iterator[IdleCause]:
    steps = max(len(profile.windows), 1)
    clock = alignment.clock_of(profile.rank)
    for row in profile.idle_causes.head(MOST_CAUSES).iter_rows(named=True):
        yield IdleCause(
            rank=profile.rank,
            kind=row["kind"],
            operation=row["operation"],
            detail=row["detail"],
            layer=row["layer"],
            phase=row["phase"],
            ns_per_step=round(row["ns"] / steps),
            times_per_step=row["count"] / steps,
            longest_ns=row["longest_ns"],
            longest_start_ns=clock.common_ns(row["longest_start_ns"]),
        )


def _launches(profile: RankProfile) -> Iterator[Launches]:
    stats = profile.launch_stats
    if stats is None:
        return
    steps = max(stats.num_steps, 1)
    yield Launches(
        rank=profile.rank,
        device_events_per_step=stats.num_device_events / steps,
        launches_per_step=stats.num_launches / steps,
        launches_per_ms=stats.num_launches / stats.window_ns * 1e6 if stats.window_ns else 0.0,
        graph_launches_per_step=stats.num_graph_launches / steps,
        device_events_in_graphs_per_step=stats.num_in_graphs / steps,
        device_events_without_launch_per_step=stats.num_unlinked / steps,
        call_median_ns=stats.call_median_ns,
        latency_median_ns=stats.latency_median_ns,
        latency_p95_ns=stats.latency_p95_ns,
        queue_mean=stats.queue_mean,
        queue_max=stats.queue_max,
    )
