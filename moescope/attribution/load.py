"""Load of experts and ranks, per layer and microbatch, beside what random routing alone would give.

With N_e assignments on expert e (or L_r on rank r), MaxVio = (max - mean) / mean; it is taken on every layer and
microbatch first and averaged after, since averaged counts hide that hot experts move. Uniformly random routing
of n assignments over E experts is not perfectly even either: its expected MaxVio is about
sqrt(2 ln E * E / n), the level printed as the floor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from moescope.align.frames import conform
from moescope.align.ranges import IntArray
from moescope.attribution.timeline import FloatArray


@dataclass(frozen=True, slots=True)
class Counts:
    """What the load is computed from.

    ``rank_counts``: ``step, microbatch, layer, rank, tokens``: assignments received per rank.
    ``expert_counts``: ``step, microbatch, layer, counts`` (list per expert, summed over sources), empty if only
    ranks are known. ``dropped``: ``layer, dropped_share``, empty where not recorded.
    """

    source: str
    rank_counts: pl.DataFrame
    expert_counts: pl.DataFrame
    dropped: pl.DataFrame


RANK_COUNTS = {"step": pl.Int64, "microbatch": pl.Int64, "layer": pl.Int64, "rank": pl.Int64, "tokens": pl.Float64}
EXPERT_COUNTS: dict[str, Any] = {
    "step": pl.Int64,
    "microbatch": pl.Int64,
    "layer": pl.Int64,
    "counts": pl.List(pl.Float64),
}
DROPPED = {"layer": pl.Int64, "dropped_share": pl.Float64}


def max_violation(loads: FloatArray) -> float:
    """MaxVio of one interval's loads, [n]; 0 for no load."""
    mean = float(loads.mean()) if len(loads) else 0.0
    return float(loads.max() / mean - 1) if mean > 0 else 0.0


def random_floor(num_assignments: float, num_bins: int) -> float:
    """Expected MaxVio of uniformly random routing: sqrt(2 ln E * E / n)."""
    if num_assignments <= 0 or num_bins < 2:
        return 0.0
    return float(np.sqrt(2 * np.log(num_bins) * num_bins / num_assignments))


def variation(loads: FloatArray) -> float:
    """Coefficient of variation, std / mean; 0 for no load."""
    mean = float(loads.mean()) if len(loads) else 0.0
    return float(loads.std() / mean) if mean > 0 else 0.0


def gini(loads: FloatArray) -> float:
    """Gini coefficient of the loads: 0 when even, near 1 when one takes all.

    sum_i (2i - n - 1) x_(i) / (n sum x) over the sorted loads.
    """
    total = float(loads.sum())
    if total <= 0:
        return 0.0
    ordered, n = np.sort(loads), len(loads)
    return float(((2 * np.arange(1, n + 1) - n - 1) * ordered).sum() / (n * total))


def normalised_entropy(loads: FloatArray) -> float:
    """Entropy of the load's distribution over ln(number of bins): 1 when even, 0 when one takes all."""
    total = loads.sum()
    if total <= 0 or len(loads) < 2:
        return 1.0
    share = loads[loads > 0] / total
    return float(-(share * np.log(share)).sum() / np.log(len(loads)))


ExpertPlacement = Sequence[int] | Mapping[str, Sequence[int]] | None
"""As run.json has it: the EP member of each expert, or such a list by layer number."""


def members_of(placement: ExpertPlacement, layer: int, num_experts: int, size: int) -> list[int]:
    """The EP member that holds each expert of a layer, [num_experts]; contiguous over ``size`` members if unknown."""
    found = placement.get(str(layer)) if isinstance(placement, Mapping) else placement
    return list(found) if found else [expert * size // num_experts for expert in range(num_experts)]


def counts_from_telemetry(
    expert_load: pl.DataFrame, ep_groups: Sequence[Sequence[int]], placement: ExpertPlacement
) -> Counts | None:
    """Counts the hooks wrote; None where there are none or the groups are not known.

    ``expert_load``: the telemetry table; ``placement``: EP member that holds each expert, for all layers or by layer
    number; contiguous if None.
    """
    if expert_load.is_empty() or not ep_groups:
        return None
    group_of = {rank: index for index, group in enumerate(ep_groups) for rank in group}
    table = expert_load.filter(pl.col("rank").is_in(list(group_of))).with_columns(
        group=pl.col("rank").replace_strict(group_of, return_dtype=pl.Int64)
    )
    long = table.select(
        "step", "microbatch", "layer", "group", "counts", expert=pl.int_ranges(pl.col("counts").list.len())
    )
    long = long.explode("counts", "expert")
    num_experts = int(long["expert"].max() or 0) + 1  # type: ignore[arg-type]
    size = len(ep_groups[0])
    holder = pl.DataFrame(
        [
            (layer, index, expert, group[member])
            for layer in table["layer"].unique()
            for expert, member in enumerate(members_of(placement, layer, num_experts, size))
            for index, group in enumerate(ep_groups)
        ],
        schema={"layer": table.schema["layer"], "group": pl.Int64, "expert": pl.Int64, "rank": pl.Int64},
        orient="row",
    )
    key = ["step", "microbatch", "layer"]
    by_rank = (
        long.join(holder, on=["layer", "group", "expert"]).group_by([*key, "rank"]).agg(tokens=pl.col("counts").sum())
    )
    by_expert = long.group_by([*key, "expert"]).agg(pl.col("counts").sum()).sort("expert")
    by_expert = by_expert.group_by(key).agg("counts")
    dropped = table.group_by("layer").agg(
        dropped_share=_total(table, "dropped") / pl.col("counts").list.sum().sum().clip(1)
    )
    return Counts(
        "telemetry",
        conform(by_rank, RANK_COUNTS).sort([*key, "rank"]),
        conform(by_expert, EXPERT_COUNTS).sort(key),
        conform(dropped, DROPPED).sort("layer"),
    )


def _total(table: pl.DataFrame, column: str) -> pl.Expr:
    is_list = isinstance(table.schema[column], pl.List)
    return pl.col(column).list.sum().sum() if is_list else pl.col(column).sum()


def expert_groups(collectives: pl.DataFrame) -> list[list[int]]:
    """The groups of ranks that exchange tokens, where run.json does not name them: those of the all-to-alls.

    Of several kinds of all-to-all, those known as dispatches; empty where the groups found share ranks.
    """
    exchanges = collectives.filter((pl.col("kind") == "all_to_all") & (pl.col("members").list.len() > 1))
    dispatches = exchanges.filter(pl.col("phase") == "dispatch")
    chosen = exchanges if dispatches.is_empty() else dispatches
    groups = sorted({tuple(members) for members in chosen["members"].to_list()})
    ranks = [rank for group in groups for rank in group]
    return [list(group) for group in groups] if len(ranks) == len(set(ranks)) else []


def counts_from_splits(collectives: pl.DataFrame) -> Counts | None:
    """Rows each rank received in the forward dispatches; None where no all-to-all recorded splits."""
    dispatch = collectives.filter(
        (pl.col("kind") == "all_to_all")
        & (pl.col("phase") == "dispatch")
        & ~pl.col("backward").fill_null(False)
        & (pl.col("out_splits").list.len() > 1)
        & pl.col("layer").is_not_null()
        & pl.col("complete")
    )
    if dispatch.is_empty():
        return None
    turn = pl.col("instance").rank("dense").over("step", "layer", "group") - 1
    rows = dispatch.select(
        "step",
        pl.col("layer").cast(pl.Int64),
        "rank",
        microbatch=pl.col("microbatch").cast(pl.Int64).fill_null(turn.cast(pl.Int64)),
        tokens=pl.col("out_splits").list.sum().cast(pl.Float64),
    )
    rows = (
        rows.with_columns(pl.col("step").fill_null(0))
        .group_by("step", "microbatch", "layer", "rank")
        .agg(pl.col("tokens").sum())
    )
    return Counts(
        "splits",
        conform(rows, RANK_COUNTS).sort("step", "microbatch", "layer", "rank"),
        pl.DataFrame(schema=EXPERT_COUNTS),
        pl.DataFrame(schema=DROPPED),
    )


def intervals(counts: Counts) -> pl.DataFrame:
    """One row per ``step, microbatch, layer``, in this order.

    ``rank, tokens`` (lists), ``maxvio_rank, hottest_rank, total``; where experts are known also ``counts`` (list),
    ``maxvio_expert, hottest_expert, entropy``, else null.
    """
    key = ["step", "microbatch", "layer"]
    ranks = counts.rank_counts.group_by(key, maintain_order=True).agg("rank", "tokens")
    ranks = ranks.with_columns(
        maxvio_rank=pl.col("tokens").map_elements(_violation, return_dtype=pl.Float64),
        hottest_rank=pl.col("rank").list.get(pl.col("tokens").list.arg_max()),
        total=pl.col("tokens").list.sum(),
    )
    experts = counts.expert_counts.with_columns(
        maxvio_expert=pl.col("counts").map_elements(_violation, return_dtype=pl.Float64),
        hottest_expert=pl.col("counts").list.arg_max().cast(pl.Int64),
        entropy=pl.col("counts").map_elements(_entropy, return_dtype=pl.Float64),
    )
    return ranks.join(experts, on=key, how="left").sort(key)


def _violation(values: pl.Series) -> float:
    return max_violation(values.to_numpy())


def _entropy(values: pl.Series) -> float:
    return normalised_entropy(values.to_numpy())


def imbalance_cost_ns(work: pl.DataFrame) -> Mapping[int, float]:
    """Per layer, the sum over steps, microbatches and directions of (max over ranks - mean over ranks) expert time, ns.

    ``work``: ``expert_work``. Ranks are compared at the same turn of the same step, over all expert-parallel groups:
    groups work side by side, and the slowest holds up the next reduction.
    """
    work = work.filter("complete")
    if work.is_empty():
        return {}
    each = work.group_by("step", "turn", "layer", maintain_order=True).agg(
        loss=pl.col("work_ns").max() - pl.col("work_ns").mean()
    )
    total = each.drop_nulls("layer").group_by("layer", maintain_order=True).agg(pl.col("loss").sum())
    return {int(layer): float(loss) for layer, loss in total.rows()}


def dead_experts(counts: IntArray) -> int:
    """How many experts no token reached over all observed intervals."""
    return int((counts == 0).sum())
