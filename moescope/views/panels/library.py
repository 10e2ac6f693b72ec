"""The panel of what the communication library timed itself."""

from __future__ import annotations

from moescope.views.model import Analysis
from moescope.views.panels import Column, Empty, Panel, Table
from moescope.views.text import plural

NO_INSPECTOR = Empty(
    "The folder holds no recording of NCCL's inspector plugin.",
    "Set NCCL_PROFILER_PLUGIN to libnccl-profiler-inspector.so, NCCL_INSPECTOR_ENABLE=1, and NCCL_INSPECTOR_DUMP_DIR "
    "to a folder below the traces.",
)


def library_panel(analysis: Analysis) -> Panel:
    """Time and bandwidth of collectives over the whole run, not the profiled steps alone."""
    key, title, question = "library", "Collectives by NCCL's inspector", "How fast were collectives over the whole run?"
    if not analysis.library:
        return Panel(key, title, question, empty=NO_INSPECTOR)
    columns = (
        Column("group"),
        Column("kind"),
        Column("ranks", "count"),
        Column("recorded", "count"),
        Column("bytes up to", "bytes"),
        Column("number", "count"),
        Column("shortest rank", "duration"),
        Column("longest rank", "duration"),
        Column("GB/s", "figure"),
        Column("bus GB/s", "figure"),
        Column("timed by"),
    )
    rows = tuple(
        (c.group, c.kind.replace("_", " "), c.group_size, c.num_members, c.bytes_up_to, c.num, c.shortest_ns,
         c.longest_ns, c.algbw_gb_per_s, c.busbw_gb_per_s, c.timing)
        for c in analysis.library
    )  # fmt: skip
    count = plural(sum(c.num for c in analysis.library), "operation")
    reading = f"{count}; medians. The shortest rank came last and waited least, the longest holds the wait."
    return Panel(key, title, question, reading, (Table("library", columns, rows),))
