"""Matched collectives into the dataclasses of the view model, with their bandwidths."""

from __future__ import annotations

from typing import Any

import polars as pl

from moescope.align import Alignment, TransferModel
from moescope.views.model import Collective, CollectiveRank

MAX_COLLECTIVE_ROWS = 400_000
"""Collectives beyond this many rank rows are left to the tables; the sums over them are complete."""

BUS_FACTOR = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
}
"""Bus bandwidth over algorithm bandwidth for n ranks, as nccl-tests defines them; 1 for other kinds."""

_RANK_COLUMNS = [
    "rank", "start_ns", "end_ns", "arrival_wait_ns", "removable_wait_ns", "transfer_ns", "send_bytes", "recv_bytes",
]  # fmt: skip


def collectives(alignment: Alignment) -> tuple[Collective, ...]:
    """Matched collectives with every rank's part, in time order."""
    rows = alignment.collectives.head(MAX_COLLECTIVE_ROWS)
    parts = rows.group_by(["instance"], maintain_order=True)
    return tuple(_collective(part, alignment) for _, part in parts)


def _collective(part: pl.DataFrame, alignment: Alignment) -> Collective:
    first = part.row(0, named=True)
    phase = f"{first['phase']}.bwd" if first["phase"] and first["backward"] else first["phase"]
    ends: Any = part["end_ns"].max()
    starts: Any = part["start_ns"].max()
    span_ns = max(int(ends - starts), 0)
    algbw = _algbw(part)
    factor = BUS_FACTOR.get(first["kind"])
    size = len(first["members"])
    base, volume = _modelled(first, alignment.models.get(first["tier"]))
    return Collective(
        group=first["group"],
        kind=first["kind"],
        sequence=first["sequence"],
        step=first["step"],
        layer=first["layer"],
        phase=phase,
        by_rank=tuple(CollectiveRank(**row) for row in part.select(_RANK_COLUMNS).iter_rows(named=True)),
        tier=first["tier"],
        span_ns=span_ns,
        algbw_gb_per_s=algbw,
        busbw_gb_per_s=algbw * factor(size) if algbw is not None and factor is not None and size else algbw,
        base_ns=base,
        volume_imbalance_ns=volume,
        inefficiency_ns=span_ns - base - volume if base is not None and volume is not None else None,
    )


def _algbw(part: pl.DataFrame) -> float | None:
    """GB/s, which is bytes per ns: the largest rank's buffer over the shortest participation, which holds no wait."""
    size: Any = part.select(pl.max_horizontal("send_bytes", "recv_bytes").max()).item()
    shortest: Any = (part["end_ns"] - part["start_ns"]).min()
    return float(size) / shortest if size is not None and shortest > 0 else None


def _modelled(first: dict[str, Any], model: TransferModel | None) -> tuple[int | None, int | None]:
    """(base, volume imbalance) of an all-to-all by its tier's link model, ns."""
    if model is None or first["kind"] != "all_to_all" or first["mean_bytes"] is None:
        return None, None
    base = model.alpha_ns + first["mean_bytes"] / model.bytes_per_ns
    return round(base), round((first["bottleneck_bytes"] - first["mean_bytes"]) / model.bytes_per_ns)
