"""HolisticTraceAnalysis on one trace file: run by whichever Python has it, apart from moescope's own process.

    python -c SOURCE TRACE OUT

writes one JSON object to OUT. Each part that the tool cannot compute is named under ``failed`` with its reason.
Imports nothing of moescope, so that the tool may live in an environment of its own.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import math
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

IDLE_KINDS = ("host_wait", "kernel_wait", "other")


def main(trace: str, out: str) -> None:
    """Analyse ``trace`` and write ``out``; what the tool prints is dropped."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    found: dict[str, Any] = {"version": version("HolisticTraceAnalysis"), "failed": {}}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        tool = importlib.import_module("hta.trace_analysis")
        analysis = tool.TraceAnalysis(trace_files={0: trace}, trace_dir="")
        for name, part in PARTS.items():
            try:
                found[name] = part(analysis)
            except Exception as error:  # whatever a part of another tool runs into, the other parts still count
                found[name] = None
                found["failed"][name] = f"{type(error).__name__}: {error}"
    with open(out, "w", encoding="utf-8") as file:
        json.dump(found, file)


def temporal(analysis: Any) -> dict[str, float]:
    """Device time by kind, microseconds."""
    row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    names = {"idle": "idle_time", "compute": "compute_time", "non_compute": "non_compute_time", "total": "kernel_time"}
    return {ours: float(row[f"{theirs}(us)"]) for ours, theirs in names.items()}


def overlap(analysis: Any) -> float | None:
    """Percent of communication that runs beside compute; None without communication."""
    value = float(analysis.get_comm_comp_overlap(visualize=False).iloc[0]["comp_comm_overlap_pctg"])
    return None if math.isnan(value) else value


def idle(analysis: Any) -> list[dict[str, float]]:
    """Idle time of each stream by kind, microseconds."""
    table, _ = analysis.get_idle_time_breakdown(ranks=[0], visualize=False)
    streams: dict[int, dict[str, float]] = {}
    for _, row in table.iterrows():
        own = streams.setdefault(int(row["stream"]), dict.fromkeys(IDLE_KINDS, 0.0))
        own[str(row["idle_category"])] = float(row["idle_time"])
    return [{"stream": stream, **streams[stream]} for stream in sorted(streams)]


def queue(analysis: Any) -> list[dict[str, float]]:
    """Launched but unfinished operations of each stream, over the moments at which their number changes."""
    series = analysis.get_queue_length_time_series(ranks=[0])
    found = []
    for stream, rows in series[0].groupby("stream") if 0 in series else ():
        lengths = rows["queue_length"]
        found.append({"stream": int(stream), "mean": float(lengths.mean()), "max": float(lengths.max())})
    return found


def critical_path(analysis: Any) -> dict[str, float] | None:
    """Percent of the first step's critical path by what bounds it; None where the path cannot be found."""
    answer = analysis.critical_path_analysis(rank=0, annotation="ProfilerStep", instance_id=0)
    if answer is None or not answer[1]:
        return None
    return {str(kind) or "unnamed": float(share) for kind, share in answer[0].summary().items() if share > 0}


PARTS: dict[str, Callable[[Any], Any]] = {
    "temporal": temporal,
    "overlap_percent": overlap,
    "idle": idle,
    "queue": queue,
    "critical_path": critical_path,
}

if __name__ == "__main__":
    main(*sys.argv[1:3])
