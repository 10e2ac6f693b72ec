"""What the routers' telemetry says: how sure they were, what they dropped, and which hosts their tokens went to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from moescope.telemetry import Telemetry
from moescope.views.model.router import HostTraffic, RouterLayer

_EXCHANGES = ("dispatch", "combine")


def routers(telemetry: Telemetry | None) -> tuple[RouterLayer, ...]:
    """One entry per layer over all observed steps; empty without telemetry."""
    if telemetry is None or telemetry.expert_load.is_empty():
        return ()
    table = telemetry.expert_load.group_by("layer").agg(
        pl.col("margin").mean(),
        pl.col("entropy").mean(),
        flips=pl.col("bf16_flips").sum(),
        examined=pl.col("counts").list.sum().filter(pl.col("bf16_flips").is_not_null()).sum(),
        dropped=pl.col("dropped").list.sum().sum(),
        can_drop=pl.col("dropped").is_not_null().any(),
        assigned=pl.col("counts").list.sum().sum(),
    )
    return tuple(
        RouterLayer(
            layer=int(row["layer"]),
            margin=_known(row["margin"]),
            entropy=_known(row["entropy"]),
            flipped_share=row["flips"] / row["examined"] if row["examined"] else None,
            dropped_share=row["dropped"] / row["assigned"] if row["can_drop"] and row["assigned"] else None,
        )
        for row in table.sort("layer").iter_rows(named=True)
    )


def _known(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else float(value)


def traffic(telemetry: Telemetry | None, host_of_rank: Mapping[int, str]) -> tuple[HostTraffic, ...]:
    """Bytes that dispatch and combine send from host to host, means over the observed steps; empty without sizes."""
    if telemetry is None:
        return ()
    rows = telemetry.collective.filter(pl.col("phase").is_in(_EXCHANGES) & (pl.col("send_bytes").list.len() > 1))
    num_steps = rows["step"].n_unique()
    sums: dict[tuple[str, str], int] = {}
    for (rank,), mine in rows.group_by(["rank"], maintain_order=True):
        members = _group_of(int(rank), telemetry.run)
        sized = mine.filter(pl.col("send_bytes").list.len() == len(members))
        sent = sized["send_bytes"].explode().to_numpy().reshape(-1, max(len(members), 1)).sum(axis=0)
        for member, count in zip(members, sent.tolist(), strict=False):
            pair = host_of_rank.get(int(rank), ""), host_of_rank.get(member, "")
            sums[pair] = sums.get(pair, 0) + int(count)
    return tuple(HostTraffic(a, b, round(total / num_steps)) for (a, b), total in sorted(sums.items()))


def _group_of(rank: int, run: Mapping[str, Any]) -> list[int]:
    """The ranks that exchange tokens with ``rank``, in group order."""
    parallel = run.get("parallel")
    groups = parallel.get("ep_groups") if isinstance(parallel, Mapping) else None
    return next(([int(member) for member in group] for group in groups or () if rank in group), [])
