"""What surrounds the events in a trace file: metadata on top, labels of processes and threads, the profiler's span."""

from __future__ import annotations

import json

from moescope.simulate.config import SimConfig
from moescope.simulate.events import BASE_NS, EventLog, Interval, micro
from moescope.simulate.groups import DESCRIPTIONS, Groups
from moescope.simulate.kineto import COMM_STREAMS, COMPUTE_STREAM, MESSAGE_STREAMS


def trace_file(config: SimConfig, groups: dict[str, Groups], rank: int, log: EventLog, active: Interval) -> str:
    """The whole file, from the events in ``log``; the profiler recorded what lies in ``active``."""
    first, last = active
    labels = EventLog(log.pid, log.device, log.num_sms)
    for pid, label in ((log.pid, "CPU"), (log.device, f"GPU {log.device}")):
        labels.label("process_name", first, pid, 0, '"name": "python"')
        labels.label("process_labels", first, pid, 0, f'"labels": "{label}"')
    for tid, name in ((log.thread(False), "python"), (log.thread(True), "pt_autograd_0")):
        labels.label("thread_name", first, log.pid, tid, f'"name": "thread {tid} ({name})"')
    streams = [COMPUTE_STREAM, *(COMM_STREAMS[kind] for kind in groups if kind in COMM_STREAMS)]
    for stream in (*streams, *(MESSAGE_STREAMS if "pp" in groups else ())):
        labels.label("thread_name", first, log.device, stream, f'"name": "stream {stream} "')
    head = json.dumps(_metadata(config, groups, rank), indent=2)[:-2]
    body = ",\n".join((*labels.events, *log.events, *_profiler_span(first, last)))
    return f'{head},\n  "traceEvents": [\n{body}\n  ],\n  "traceName": "rank{rank}.json"\n}}\n'


def _profiler_span(first: int, last: int) -> list[str]:
    span = (
        f'  {{\n    "ph": "X",\n    "cat": "Trace",\n    "name": "PyTorch Profiler (0)",\n    "pid": "Spans",\n'
        f'    "tid": "PyTorch Profiler",\n    "ts": {micro(first)},\n    "dur": {micro(last - first)}\n    ,\n'
        f'    "args": {{\n      "Op count": 0\n    }}\n  }}'
    )
    instants = (("Iteration Start: PyTorch Profiler", "Traces", "Trace PyTorch Profiler", first),
                ("Record Window End", "", "", last))  # fmt: skip
    return [
        span,
        *(
            f'  {{\n    "ph": "i",\n    \n    "s": "g",\n    "name": "{name}",\n    "pid": "{pid}",\n'
            f'    "tid": "{tid}",\n    "ts": {micro(at)}\n    \n  }}'
            for name, pid, tid, at in instants
        ),
    ]


def _metadata(config: SimConfig, groups: dict[str, Groups], rank: int) -> dict[str, object]:
    mine = {kind: group.of(rank) for kind, group in groups.items()}
    return {
        "schemaVersion": 1,
        "deviceProperties": [_properties(config, index) for index in range(min(config.ranks_per_host, config.ranks))],
        "cupti_version": 28,
        "cuda_runtime_version": 12_090,
        "cuda_driver_version": 13_000,
        "trace_id": f"{config.seed:016X}{rank:016X}",
        "profile_memory": 1,
        "record_shapes": 1,
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank,
            "world_size": config.ranks,
            "pg_count": sum(len(group.members) for group in groups.values()),
            "pg_config": [
                {
                    "pg_name": groups[kind].name(index),
                    "pg_desc": DESCRIPTIONS[kind],
                    "backend_config": "cuda:nccl",
                    "pg_size": groups[kind].members.shape[1],
                    "ranks": groups[kind].members[index].tolist(),
                }
                for kind, index in mine.items()
            ],
            "nccl_version": "2.27.7",
        },
        "host_name": config.host_name(config.host_of(rank)),
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE_NS,
    }


def _properties(config: SimConfig, index: int) -> dict[str, object]:
    device = config.device
    return {
        "id": index,
        "name": device.name,
        "totalGlobalMem": device.memory_bytes,
        "computeMajor": 9,
        "computeMinor": 0,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerMultiprocessor": 2048,
        "regsPerBlock": 65_536,
        "warpSize": 32,
        "sharedMemPerBlock": 49_152,
        "numSms": device.num_sms,
        "regsPerMultiprocessor": 65_536,
        "sharedMemPerBlockOptin": 232_448,
        "sharedMemPerMultiprocessor": 233_472,
    }
