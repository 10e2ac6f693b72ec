"""Layer and phase of all-to-alls in traces that carry no ranges of our hooks, inferred from their splits.

A MoE layer dispatches rows with some splits and combines them with the same splits transposed; the backward pass
repeats the pair in reverse. So each exchange is either the first of its kind (a dispatch that opens a
layer) or the mirror image of an earlier one. Layers are numbered in the order in which they open within a step. An
exchange of as many rows to every peer as from it is its own mirror image and tells nothing.
"""

from __future__ import annotations

import polars as pl

Splits = tuple[tuple[int, ...], tuple[int, ...]]


def infer_phases(rows: pl.DataFrame) -> pl.DataFrame:
    """Sets ``layer, phase, backward`` of all-to-alls that have splits and no recorded layer; ``inferred`` says where.

    ``rows``: matched collectives with ``instance, rank, step, kind, in_splits, out_splits``.
    """
    open_rows = rows.filter(
        (pl.col("kind") == "all_to_all")
        & pl.col("layer").is_null()
        & (pl.col("in_splits").list.len() > 1)
        & pl.col("out_splits").is_not_null()
    )
    if open_rows.is_empty():
        return rows.with_columns(inferred=pl.lit(False))
    first = open_rows.filter(pl.col("rank") == pl.col("rank").min().over("instance")).sort("start_ns")
    labels = []
    for _, part in first.group_by(["rank", "step"], maintain_order=True):
        pairs = part.select("in_splits", "out_splits").rows()
        found = _label([(tuple(sent), tuple(got)) for sent, got in pairs])
        labels.append(part.select("instance").hstack(pl.DataFrame(found, schema=_SCHEMA, orient="row")))
    table = pl.concat(labels).unique("instance", keep="first")
    joined = rows.join(table, on="instance", how="left", maintain_order="left")
    inferred = pl.col("layer_found").is_not_null()
    return joined.with_columns(
        inferred=inferred,
        **{name: pl.when(inferred).then(f"{name}_found").otherwise(name) for name in ("layer", "phase", "backward")},
    ).drop("layer_found", "phase_found", "backward_found")


_SCHEMA = {"layer_found": pl.Int32, "phase_found": pl.String, "backward_found": pl.Boolean}


def _label(exchanges: list[Splits]) -> list[tuple[int | None, str | None, bool | None]]:
    """(layer, phase, backward) of one rank's exchanges in one step."""
    labels: list[tuple[int | None, str | None, bool | None]] = []
    layers: list[Splits] = []
    seen: dict[tuple[int, bool], int] = {}
    for sent, got in exchanges:
        if sent == got:
            labels.append((None, None, None))
            continue
        layer = next((index for index in reversed(range(len(layers))) if layers[index] == (sent, got)), None)
        mirror = next((index for index in reversed(range(len(layers))) if layers[index] == (got, sent)), None)
        if mirror is not None and not seen.get((mirror, True), 0):
            seen[(mirror, True)] = 1
            labels.append((mirror, "combine", False))
        elif layer is not None and seen.get((layer, True), 0) and seen.get((layer, False), 0) < 2:
            seen[(layer, False)] = 2
            labels.append((layer, "combine", True))
        elif mirror is not None and seen.get((mirror, False), 0) == 2:
            seen[(mirror, False)] = 3
            labels.append((mirror, "dispatch", True))
        else:
            layers.append((sent, got))
            labels.append((len(layers) - 1, "dispatch", False))
    return labels
