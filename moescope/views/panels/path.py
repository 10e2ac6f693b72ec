"""The panel of the critical path across ranks."""

from __future__ import annotations

from moescope.views.model import Analysis
from moescope.views.panels import Column, Empty, Panel, Table
from moescope.views.text import duration, percent


def path_panel(analysis: Analysis) -> Panel:
    """What the step's length hangs on: work and transfers along the chain of ranks that waited for nobody."""
    key, title, question = "path", "Critical path", "What would shorten the step, and what would not?"
    path = analysis.critical_path
    if path is None or not path.length_ns:
        empty = Empty(
            "No collective ties the ranks together, so no path across them can be followed.",
            "Record the traces of all ranks over the same steps.",
        )
        return Panel(key, title, question, empty=empty)
    parts = tuple((part, ns, ns / path.length_ns) for part, ns in path.parts_ns.items() if ns)
    causes = tuple((c.cause.replace("_", " "), c.rank, c.ns_per_step, c.share_of_step) for c in path.causes)
    ranks = tuple((one.rank, one.ns_per_step, one.share_of_step) for one in path.ranks)
    per_step, of_step = Column("per step", "duration"), Column("of the step", "percent")
    tables = (
        Table("parts of the path", (Column("part"), per_step, of_step), parts),
        Table("causes on the path", (Column("cause"), Column("rank", "id"), per_step, of_step), causes),
        Table("ranks on the path", (Column("rank", "id"), per_step, of_step), ranks),
    )
    first = path.ranks[0]
    reading = (
        f"The path takes {duration(path.length_ns)} per step and runs on rank {first.rank} for "
        f"{percent(first.ns_per_step / path.length_ns)} of it; it changes ranks {path.changes_per_step:.0f} "
        "times a step."
    )
    if path.causes:
        top = path.causes[0]
        whose = "" if top.rank is None else f" of rank {top.rank}"
        reading += f" Most of what could go is {top.cause.replace('_', ' ')}{whose}: {duration(top.ns_per_step)}."
    return Panel(key, title, question, reading, tables)
