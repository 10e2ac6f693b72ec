"""Tiny Kineto traces, written as files: steps with a launch, its kernel and an all-to-all."""

from __future__ import annotations

import json
from pathlib import Path


def event(name: str, category: str, ts: float, dur: float, **args: object) -> dict[str, object]:
    return {"ph": "X", "name": name, "cat": category, "ts": ts, "dur": dur, "pid": 1, "tid": 1, "args": args}


def write_trace(folder: Path, rank: int, *, host: str | None = "node0", world_size: int = 2, steps: int = 2) -> None:
    """Write one rank's trace: steps with a launch, its kernel and an all-to-all."""
    events = []
    for step in range(steps):
        start = 1000.0 + 100 * step
        events += [
            event(f"ProfilerStep#{step}", "user_annotation", start, 90),
            event("aten::mm", "cpu_op", start, 10, **{"Input Dims": [[4, 8], [8, 2]]}),
            event("cudaLaunchKernel", "cuda_runtime", start + 1, 2, correlation=10 + step),
            event("gemm", "kernel", start + 5, 20, correlation=10 + step, device=0, stream=7),
            event(
                "ncclDevKernel_SendRecv", "kernel", start + 30, 20, device=0, stream=20,
                **{"Collective name": "all_to_allv", "In msg nelems": 8, "Out msg nelems": 8, "dtype": "Float",
                   "In split size": "[1, 1]", "Out split size": "[1, 1]", "Process Group Name": "1"},
            ),
        ]  # fmt: skip
    trace: dict[str, object] = {"traceEvents": events, "distributedInfo": {"rank": rank, "world_size": world_size}}
    if host is not None:
        trace["host_name"] = host
    (folder / f"rank{rank}.json").write_text(json.dumps(trace))
