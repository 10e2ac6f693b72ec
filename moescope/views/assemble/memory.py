"""Memory into the view model: peaks by rank, tokens, trades, peaks of all steps, allocator snapshots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import polars as pl

from moescope.align import Alignment
from moescope.attribution import RankProfile
from moescope.attribution.load import Counts
from moescope.attribution.memory import BEFORE_WINDOW
from moescope.attribution.memory_tokens import TokenFit, fit_tokens, received_tokens, token_points
from moescope.attribution.snapshot import SnapshotUse, snapshot_use
from moescope.telemetry import Telemetry
from moescope.trace import Problem, TraceDirectory
from moescope.trace.snapshots import open_snapshots
from moescope.views.model import RankMemory
from moescope.views.model.memory import DriverCalls, MemorySnapshot, MemoryTrade, MemoryUse, StepPeak, TokenMemory

STANDARD_ERRORS = 2
STATE = ("parameters", "gradients", "optimizer")


def memory(
    profiles: Sequence[RankProfile], telemetry: Telemetry | None, directory: TraceDirectory, alignment: Alignment
) -> tuple[RankMemory, ...]:
    """Every rank's memory from the trace's memory events, else the peaks that telemetry recorded.

    Of several windows the one with the highest peak; times on the common clock.
    """
    recorded = [(p.rank, p.memory) for p in profiles if p.memory is not None]
    from_events = dict(sorted(recorded, key=lambda pair: pair[1].allocated_peak_bytes))
    state = _state_bytes(telemetry)
    found = [
        RankMemory(
            rank=rank,
            device=memory.device,
            allocated_peak_bytes=memory.allocated_peak_bytes,
            reserved_peak_bytes=memory.reserved_peak_bytes,
            capacity_bytes=memory.capacity_bytes,
            peak_at_ns=alignment.clock_of(rank).common_ns(memory.peak_at_ns),
            peak_phase=memory.peak_phase,
            live_by_phase_bytes=with_state(memory.live_by_phase_bytes, state.get(rank)),
            series=_on_common_clock(memory.series, alignment, rank),
            source="events",
            reserved_at_peak_bytes=memory.reserved_at_peak_bytes,
            live_by_layer_bytes=memory.live_by_layer_bytes,
            live_by_operation_bytes=memory.live_by_operation_bytes,
            reserved_series=_on_common_clock(memory.reserved_series, alignment, rank),
        )
        for rank, memory in from_events.items()
    ]
    if not found and telemetry is not None:
        device = {trace.rank: trace.device for trace in directory.ranks}
        capacity = device_bytes(telemetry)
        found = [_from_telemetry(row, device, capacity) for row in _peaks(telemetry).iter_rows(named=True)]
    return tuple(sorted(found, key=lambda memory: memory.rank))


def _on_common_clock(
    series: tuple[tuple[int, int], ...], alignment: Alignment, rank: int
) -> tuple[tuple[int, int], ...]:
    clock = alignment.clock_of(rank)
    return tuple((clock.common_ns(at), size) for at, size in series)


def _state_bytes(telemetry: Telemetry | None) -> dict[int, dict[str, int]]:
    """Bytes of parameters, gradients and optimizer state by rank, as the hooks noted them."""
    if telemetry is None or telemetry.step.is_empty():
        return {}
    columns = {name: f"{name.removesuffix('s')}_bytes" for name in STATE}
    last = telemetry.step.sort("step").group_by("rank").agg(pl.col(*columns.values()).drop_nulls().last())
    found = {}
    for row in last.iter_rows(named=True):
        found[row["rank"]] = {name: row[column] for name, column in columns.items() if row[column]}
    return found


def with_state(live: Mapping[str, int], state: Mapping[str, int] | None) -> dict[str, int]:
    """What was there before the window, divided into the state that is known to be, where it is large enough."""
    before = live.get(BEFORE_WINDOW, 0)
    if not state or sum(state.values()) > before:
        return dict(live)
    rest = before - sum(state.values())
    parts = {name: size for name, size in live.items() if name != BEFORE_WINDOW}
    return {**parts, **state, **({BEFORE_WINDOW: rest} if rest else {})}


def device_bytes(telemetry: Telemetry | None) -> dict[int, int]:
    """Memory of each rank's device, as run.json says it."""
    listed = telemetry.run.get("devices") if telemetry is not None else None
    entries = [entry for entry in listed if isinstance(entry, Mapping)] if isinstance(listed, list) else []
    pairs = [(entry.get("rank"), entry.get("memory_bytes")) for entry in entries]
    return {rank: size for rank, size in pairs if isinstance(rank, int) and isinstance(size, int) and size > 0}


def _peaks(telemetry: Telemetry) -> pl.DataFrame:
    known = telemetry.step.drop_nulls("memory_allocated_peak_bytes")
    highest = known.sort(["memory_allocated_peak_bytes", "step"], descending=[True, False])
    return highest.unique("rank", keep="first", maintain_order=True).sort("rank")


def _from_telemetry(row: Mapping[str, Any], device: Mapping[int, str], capacity: Mapping[int, int]) -> RankMemory:
    return RankMemory(
        rank=row["rank"],
        device=device.get(row["rank"], ""),
        allocated_peak_bytes=row["memory_allocated_peak_bytes"],
        reserved_peak_bytes=row["memory_reserved_peak_bytes"],
        capacity_bytes=capacity.get(row["rank"]),
        peak_at_ns=row["end_ns"],
        peak_phase=f"step {row['step']}",
        live_by_phase_bytes={},
        series=(),
        source="telemetry",
    )


def open_snapshot_uses(directory: TraceDirectory) -> tuple[list[SnapshotUse], list[Problem]]:
    """(the folder's memory snapshots taken apart, what kept others from being read)."""
    ranks = sorted({trace.rank for trace in directory.ranks})
    snapshots, problems = open_snapshots(directory.path, ranks)
    uses = (snapshot_use(snapshot) for snapshot in snapshots)
    return [use for use in uses if use is not None], problems


def memory_use(
    profiles: Sequence[RankProfile],
    telemetry: Telemetry | None,
    counts: Counts | None,
    snapshots: Sequence[SnapshotUse],
    ranks: Sequence[RankMemory],
) -> MemoryUse:
    """Everything else about memory; ``ranks``: what :func:`memory` gave."""
    return MemoryUse(
        tokens=tuple(_tokens(profiles, telemetry, counts, ranks)),
        trades=tuple(_trades(profiles)),
        driver=tuple(_driver(profiles)),
        steps=tuple(_step_peaks(profiles, telemetry)),
        snapshots=tuple(MemorySnapshot(**asdict(snapshot)) for snapshot in snapshots),
    )


def step_peaks(profiles: Sequence[RankProfile], telemetry: Telemetry | None) -> dict[tuple[int, int], int]:
    """Peak of allocated bytes by (rank, step): telemetry's, else that of the profiled steps."""
    if telemetry is not None:
        known = telemetry.step.drop_nulls("memory_allocated_peak_bytes")
        if len(known):
            rows = known.select("rank", "step", "memory_allocated_peak_bytes").rows()
            return {(rank, step): size for rank, step, size in rows}
    return {
        (profile.rank, step): size
        for profile in profiles
        if profile.memory is not None
        for step, size in profile.memory.peak_by_step_bytes.items()
    }


def _tokens(
    profiles: Sequence[RankProfile],
    telemetry: Telemetry | None,
    counts: Counts | None,
    ranks: Sequence[RankMemory],
) -> Iterator[TokenMemory]:
    if counts is None:
        return
    fit = fit_tokens(token_points(counts.rank_counts, step_peaks(profiles, telemetry)))
    if fit is None:
        return
    received = received_tokens(counts.rank_counts).group_by("rank").agg(pl.col("tokens").max()).sort("rank")
    tokens = dict(received.rows())
    of_rank = {memory.rank: memory for memory in ranks}
    mean_tokens = sum(tokens.values()) / len(tokens)
    mean_peak = sum(m.allocated_peak_bytes for m in ranks) / len(ranks) if ranks else 0.0
    capacity = device_bytes(telemetry)
    for rank, own in tokens.items():
        memory = of_rank.get(rank)
        yield _token_memory(rank, own, fit, memory, capacity=capacity.get(rank), means=(mean_tokens, mean_peak))


def _token_memory(
    rank: int,
    tokens: float,
    fit: TokenFit,
    memory: RankMemory | None,
    *,
    capacity: int | None,
    means: tuple[float, float],
) -> TokenMemory:
    mean_tokens, mean_peak = means
    low, high = (fit.bytes_per_token + sign * STANDARD_ERRORS * fit.error for sign in (-1, 1))
    limit = capacity if memory is None or memory.capacity_bytes is None else memory.capacity_bytes
    held = None if memory is None else memory.reserved_peak_bytes or memory.allocated_peak_bytes
    headroom = max(limit - held, 0) if limit is not None and held is not None else None

    def at(slope: float) -> float | None:
        return tokens + headroom / slope if headroom is not None and slope > 0 else None

    return TokenMemory(
        rank=rank,
        tokens=tokens,
        tokens_over_mean=tokens / mean_tokens if mean_tokens else 1.0,
        peak_over_mean=memory.allocated_peak_bytes / mean_peak if memory is not None and mean_peak else None,
        bytes_per_token=fit.bytes_per_token,
        bytes_per_token_low=max(low, 0.0),
        bytes_per_token_high=high,
        num_points=fit.num_points,
        within_ranks=fit.within_ranks,
        headroom_bytes=headroom,
        tokens_at_limit=at(fit.bytes_per_token),
        tokens_at_limit_low=at(high),
        tokens_at_limit_high=at(low),
    )


def _trades(profiles: Sequence[RankProfile]) -> Iterator[MemoryTrade]:
    for profile in profiles:
        for trade in profile.memory_trades:
            steps = max(trade.num_steps, 1)
            yield MemoryTrade(profile.rank, trade.kind, round(trade.saved_bytes / steps), round(trade.cost_ns / steps))


def _driver(profiles: Sequence[RankProfile]) -> Iterator[DriverCalls]:
    for profile in profiles:
        steps = max(profile.allocator.num_steps, 1)
        retries = profile.allocator.num_retries / steps
        for call, (count, ns) in profile.allocator.calls.items():
            yield DriverCalls(profile.rank, call, count / steps, round(ns / steps), retries)


def _step_peaks(profiles: Sequence[RankProfile], telemetry: Telemetry | None) -> Iterator[StepPeak]:
    if telemetry is None:
        return
    profiled = {step for profile in profiles for step in profile.windows["step"]}
    known = telemetry.step.drop_nulls("memory_allocated_peak_bytes")
    table = known.group_by("step").agg(
        pl.col("rank").sort_by("memory_allocated_peak_bytes", "rank", descending=[True, False]).first(),
        allocated=pl.col("memory_allocated_peak_bytes").max(),
        mean=pl.col("memory_allocated_peak_bytes").mean(),
        reserved=pl.col("memory_reserved_peak_bytes").max(),
    )
    for step, rank, allocated, mean, reserved in table.sort("step").rows():
        yield StepPeak(step, rank, allocated, round(mean), reserved, step in profiled)
