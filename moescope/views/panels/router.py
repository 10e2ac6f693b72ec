"""Panels about the routers: how sure they are, what they drop, a layer's history, traffic between hosts."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from moescope.views.model import Analysis, Load
from moescope.views.panels import Column, Empty, Matrix, Panel, Table, mean
from moescope.views.panels.load import NO_COUNTS
from moescope.views.text import factor, percent, plural, ratio, significant, size

NO_ROUTERS = Empty(
    "The router's telemetry is missing: margins, flips and drops are not in traces.",
    "Attach moescope_hooks.observe(model, out=RUN).",
)
NO_TRAFFIC = Empty(
    "The sizes of the exchanges per pair of ranks are not recorded.",
    "Attach moescope_hooks.observe(model, out=RUN).",
)


def routers_panel(analysis: Analysis) -> Panel:
    """Margin, flips, entropy and drops of every layer."""
    key, title = "routers", "Routers"
    question = "How sure are the routers, and do they drop tokens?"
    layers = analysis.routers
    if not layers:
        return Panel(key, title, question, empty=NO_ROUTERS)
    columns = (
        Column("layer", "id"),
        Column("margin", "ratio"),
        Column("flips in bfloat16", "percent"),
        Column("entropy", "ratio"),
        Column("dropped", "percent"),
    )
    rows = tuple((one.layer, one.margin, one.flipped_share, one.entropy, one.dropped_share) for one in layers)
    notes = (
        "Margin: the score gap between the last expert selected and the first one not selected, mean over tokens.",
        "Flips: selections that would differ if the router were computed in bfloat16.",
    )
    return Panel(key, title, question, _routers_reading(analysis), (Table("routers", columns, rows),), notes=notes)


def _routers_reading(analysis: Analysis) -> str:
    sentences = []
    margins = [(one.margin, one.layer) for one in analysis.routers if one.margin is not None]
    flips = [(one.flipped_share, one.layer) for one in analysis.routers if one.flipped_share is not None]
    drops = [(one.dropped_share, one.layer) for one in analysis.routers if one.dropped_share is not None]
    if margins:
        least, layer = min(margins)
        sentences.append(f"Layer {layer} decides by the smallest margin, {significant(least)}")
    if flips:
        most, layer = max(flips)
        sentences.append(f"bfloat16 would change at most {percent(most)} of a layer's selections (layer {layer})")
    if drops and max(drops)[0] > 0:
        most, layer = max(drops)
        sentences.append(f"layer {layer} drops most, {percent(most)} of its assignments")
    else:
        sentences.append("nothing is dropped" if drops else "this model drops no tokens")
    text = "; ".join(sentences)
    return f"{text[0].upper()}{text[1:]}."


@dataclass(frozen=True, slots=True)
class History:
    """One layer's balance by step, means over its microbatches."""

    layer: int
    steps: tuple[int, ...]
    maxvio_rank: tuple[float, ...]
    worst_rank: tuple[float, ...]
    """The largest of the step's microbatches."""
    floor: float


def histories(load: Load) -> list[History]:
    """Every layer's history."""
    seen: dict[tuple[int, int], list[float]] = defaultdict(list)
    for one in load.intervals:
        seen[one.layer, one.step].append(one.maxvio_rank)
    floors = {layer.layer: layer.maxvio_rank_floor for layer in load.layers}
    made = []
    for layer in sorted({layer for layer, _ in seen}):
        steps = sorted(step for other, step in seen if other == layer)
        values = [seen[layer, step] for step in steps]
        made.append(
            History(layer, tuple(steps), tuple(map(mean, values)), tuple(map(max, values)), floors.get(layer, 0.0))
        )
    return made


def chosen_layer(load: Load, layer: int | None) -> int:
    """``layer`` where it is known, else the least balanced one."""
    layers = {one.layer for one in load.layers}
    return layer if layer in layers else max(load.layers, key=lambda one: one.maxvio_rank).layer


def history_panel(analysis: Analysis, layer: int | None = None) -> Panel:
    """How a layer's balance went from step to step, among the others."""
    key, title, question = "history", "A layer's history", "Does the balance get better or worse?"
    load = analysis.load
    if load is None or not load.intervals:
        return Panel(key, title, question, empty=NO_COUNTS)
    made = histories(load)
    mine = next((one for one in made if one.layer == chosen_layer(load, layer)), made[0])
    reading = f"Layer {mine.layer}: its hottest rank gets {factor(1 + mine.maxvio_rank[0])} the mean in step "
    reading += f"{mine.steps[0]}"
    if len(mine.steps) > 1:
        reading += f" and {factor(1 + mine.maxvio_rank[-1])} in step {mine.steps[-1]}"
    reading += f"; random routing would give {factor(1 + mine.floor)} (MaxVio {ratio(mine.floor)})."
    columns = (
        Column("layer", "id"),
        Column("step", "id"),
        Column("MaxVio ranks, mean", "ratio"),
        Column("MaxVio ranks, worst microbatch", "ratio"),
        Column("random floor", "ratio"),
    )
    rows = tuple(
        (one.layer, step, value, worst, one.floor)
        for one in made
        for step, value, worst in zip(one.steps, one.maxvio_rank, one.worst_rank, strict=True)
    )
    return Panel(key, title, question, reading, (Table("history", columns, rows),))


def traffic_matrix(analysis: Analysis) -> Matrix:
    """Sending hosts (rows) by receiving hosts (columns), bytes per step."""
    names = sorted({one.source for one in analysis.traffic} | {one.target for one in analysis.traffic})
    sent = {(one.source, one.target): float(one.bytes_per_step) for one in analysis.traffic}
    values = tuple(tuple(sent.get((a, b)) for b in names) for a in names)
    shown = tuple(name or "unnamed" for name in names)
    return Matrix("from", "to", shown, shown, values, "bytes")


def traffic_panel(analysis: Analysis) -> Panel:
    """What tokens cross between hosts."""
    key, title = "traffic", "Traffic between hosts"
    question = "How much of the exchanged data leaves its host?"
    if not analysis.traffic:
        return Panel(key, title, question, empty=NO_TRAFFIC)
    total = sum(one.bytes_per_step for one in analysis.traffic)
    across = sum(one.bytes_per_step for one in analysis.traffic if one.source != one.target)
    hosts = len({one.source for one in analysis.traffic})
    reading = f"Dispatch and combine send {size(total)} per step over {plural(hosts, 'host')}; "
    reading += f"{size(across)} of it ({percent(across / total if total else 0.0)}) goes to another host."
    columns = (Column("from"), Column("to"), Column("per step", "bytes"), Column("of all", "percent"))
    rows = tuple(
        (one.source, one.target, one.bytes_per_step, one.bytes_per_step / total if total else None)
        for one in analysis.traffic
    )
    return Panel(key, title, question, reading, (Table("traffic", columns, rows),))
