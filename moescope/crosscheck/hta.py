"""HolisticTraceAnalysis beside us: run on the same GPU traces, each difference taken apart by its rules.

The tool runs in a process of its own, one per trace: of this environment (the extra ``hta``) or of another Python, so
that neither its dependencies nor its failures are ours.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

from moescope.crosscheck import hta_rules
from moescope.crosscheck.model import CrossCheck, FigureCheck, IdleCheck, QueueCheck, RankCheck
from moescope.errors import DataMissingError, ExitCode, MoescopeError
from moescope.trace import RankTrace, TraceDirectory

MOST_TRACES = 8
"""Checked of a folder: the tool reads some tens of thousands of events a second."""
TIMEOUT_S = 600
HAS_TOOL = "import importlib.util, sys; sys.exit(importlib.util.find_spec('hta') is None)"
FIGURES = {
    "total": ("device, first start to last end", "us"),
    "idle": ("device idle", "us"),
    "compute": ("compute", "us"),
    "non_compute": ("busy without compute", "us"),
    "overlap_percent": ("communication beside compute", "percent"),
}
NOTES = (
    "Idle by stream: HTA looks at each stream alone, so that streams which take turns are idle most of the time, and "
    "its kernel wait are gaps below 30 us (30 ns in its documentation, compared with microseconds). Our idle parts are "
    "of the device over all streams, by step, and name what the host did.",
    "Queue: HTA's launches are a list of CUDA names; ours are all calls that are linked to device work.",
    "Critical path: HTA's is within one rank; ours goes by the waits between ranks, see the causes.",
)

Progress = Callable[[int, int, str], None]


def cross_check(directory: TraceDirectory, python: str | None = None, progress: Progress | None = None) -> CrossCheck:
    """Run the tool on the folder's GPU traces, at most MOST_TRACES; ``python``: whose tool, this one's if None.

    Raises ``MoescopeError`` where that Python lacks the tool, ``DataMissingError`` where no trace is of a GPU.
    """
    program = _absolute(python or sys.executable)
    _require(program)
    on_gpu = [trace for trace in directory.ranks if trace.num_device_events]
    if not on_gpu:
        raise DataMissingError(
            "none of these traces holds device events, which is all that HTA looks at",
            hint="Record with ProfilerActivity.CUDA on a GPU.",
            code="hta-no-gpu",
        )
    checks, version = [], ""
    for number, trace in enumerate(on_gpu[:MOST_TRACES]):
        if progress is not None:
            progress(number, len(on_gpu[:MOST_TRACES]), f"HTA on rank {trace.rank}")
        found, error = run_tool(program, directory.path / trace.file)
        version = version or str((found or {}).get("version", ""))
        checks.append(check_rank(trace, found, error))
    return CrossCheck("HolisticTraceAnalysis", version, tuple(checks), tuple(_skipped(directory, on_gpu)), NOTES)


def _absolute(program: str) -> str:
    """A path from here on; links are kept, since an environment's Python is one."""
    return os.path.abspath(program) if os.sep in program else program


def _require(program: str) -> None:
    try:
        done = subprocess.run([program, "-c", HAS_TOOL], capture_output=True, check=False, timeout=TIMEOUT_S)
        is_there = done.returncode == 0
    except OSError:
        is_there = False
    if not is_there:
        raise MoescopeError(
            f"{program} has no HolisticTraceAnalysis",
            hint="Install it with pip install 'moescope[hta]', or name a Python that has it with --hta-python.",
            code="hta-missing",
            exit_code=ExitCode.USAGE,
        )


def _skipped(directory: TraceDirectory, on_gpu: Sequence[RankTrace]) -> Iterator[str]:
    if len(on_gpu) > MOST_TRACES:
        yield f"{len(on_gpu) - MOST_TRACES} of {len(on_gpu)} GPU traces: the first {MOST_TRACES} are checked"
    if len(on_gpu) < len(directory.ranks):
        yield f"{len(directory.ranks) - len(on_gpu)} traces without device events: HTA looks at those alone"


def run_tool(program: str, trace: Path) -> tuple[dict[str, Any] | None, str]:
    """(what the tool found, why it found nothing): one of them is empty."""
    source = files("moescope.crosscheck").joinpath("hta_worker.py").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="moescope-hta-") as folder:
        out = Path(folder) / "found.json"
        command = [program, "-c", source, str(trace.resolve()), str(out)]
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, errors="replace", check=False, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            return None, f"HTA took longer than {TIMEOUT_S} s"
        if done.returncode == 0 and out.exists():
            found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
            return found, ""
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        return None, f"HTA failed: {last[0]}"


def check_rank(trace: RankTrace, found: Mapping[str, Any] | None, error: str) -> RankCheck:
    """What the tool found beside our own events; ``found`` is None where it gave up."""
    if found is None:
        return RankCheck(trace.rank, trace.window, trace.file, error, {}, (), (), (), None, {})
    base = trace.info.get("baseTimeNanoseconds")
    stages, device = hta_rules.stages(trace.events(), int(base) if isinstance(base, int | float) else 0)
    temporal = found.get("temporal") or {}
    theirs = {**temporal, "overlap_percent": found.get("overlap_percent")}
    return RankCheck(
        rank=trace.rank,
        window=trace.window,
        file=trace.file,
        error="",
        rules={stage.rule: stage.why for stage in stages if stage.rule},
        figures=tuple(_figure(name, stages, theirs.get(name)) for name in FIGURES),
        idle=tuple(_idle(hta_rules.idle_by_stream(device), found.get("idle") or ())),
        queue=tuple(_queue(hta_rules.queue_by_stream(device), found.get("queue") or ())),
        critical_path_percent=found.get("critical_path"),
        failed=found.get("failed") or {},
    )


def _figure(name: str, stages: Sequence[hta_rules.Stage], theirs: float | None) -> FigureCheck:
    title, unit = FIGURES[name]
    values = [(stage.rule, asdict(stage.figures)[name]) for stage in stages]
    known = [(rule, value) for rule, value in values if value is not None]
    changes = {rule: value - before for (_, before), (rule, value) in pairwise(known)}
    last = known[-1][1] if known else None
    return FigureCheck(
        figure=title,
        unit=unit,
        ours=known[0][1] if known else None,
        changes=changes,
        theirs=theirs,
        unexplained=theirs - last if theirs is not None and last is not None else None,
    )


def _idle(ours: Mapping[int, Mapping[str, float]], theirs: Sequence[Mapping[str, float]]) -> Iterator[IdleCheck]:
    for row in theirs:
        stream = int(row["stream"])
        for kind in ("host_wait", "kernel_wait", "other"):
            mine = ours.get(stream, {}).get(kind, 0.0)
            if mine or row[kind]:
                yield IdleCheck(stream, kind, mine, row[kind])


def _queue(ours: Mapping[int, tuple[float, int]], theirs: Sequence[Mapping[str, float]]) -> Iterator[QueueCheck]:
    for row in theirs:
        mean, most = ours.get(int(row["stream"]), (None, None))
        yield QueueCheck(int(row["stream"]), mean, most, row["mean"], row["max"])
