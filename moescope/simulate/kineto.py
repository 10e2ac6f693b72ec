"""Writes one rank's trace the way torch 2.13 with Kineto and CUPTI writes it.

Times are local (the host's clock), in microseconds after ``baseTimeNanoseconds`` with three decimals, so integer
nanoseconds survive. Every launch is a CPU operation, a runtime call, a device event with the same correlation
and a pair of ``ac2g`` flow events.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from moescope.simulate.config import SimConfig
from moescope.simulate.engine import LAUNCH_CALL_NS, Groups, Record
from moescope.simulate.program import Exchange, HostWork, Kernel, Op, ReadBack, Reduce, Span

IntArray = NDArray[np.int64]

BASE_NS = 1_790_857_026_000_000_000
EPOCH_NS = BASE_NS + 5_094_944_000_000_000
"""True time 0 of every simulated run, Unix nanoseconds."""

LIST_LIMIT = 30
"""Entries of a list that the profiler keeps."""

_COMPUTE_STREAM = 7
COMM_STREAMS = {"world": 20, "ep": 24, "edp": 28}
FIRST_SEQUENCE = 1_000

_CALLS = {"cudaLaunchKernel": 211, "cudaLaunchKernelExC": 430, "cudaMemcpyAsync": 41, "cudaStreamSynchronize": 131,
          "cudaEventRecord": 135, "cudaStreamWaitEvent": 147}


@dataclass(frozen=True, slots=True)
class GroupNames:
    """One rank's view of its process groups."""

    names: dict[str, str]
    """``world`` -> ``0``, ``ep`` -> ``1``, ..."""
    descriptions: dict[str, str]
    ranks: dict[str, list[int]]

    def config(self) -> list[dict[str, object]]:
        """``distributedInfo.pg_config``: the groups that the rank belongs to."""
        return [{"pg_name": self.names[k], "pg_desc": self.descriptions[k], "backend_config": "cuda:nccl",
                 "pg_size": len(self.ranks[k]), "ranks": self.ranks[k]} for k in self.names]


def group_names(config: SimConfig, groups: dict[str, Groups], rank: int) -> GroupNames:
    """Process groups are numbered as they are created: the world, expert-parallel groups, their data-parallel ones."""
    count_ep = config.ranks // config.ep
    names = {"world": "0", "ep": str(1 + rank // config.ep)}
    descriptions = {"world": "default_pg", "ep": "ep"}
    if count_ep > 1:
        names["edp"] = str(1 + count_ep + rank % config.ep)
        descriptions["edp"] = "edp"
    ranks = {}
    for kind in names:
        row = np.flatnonzero((groups[kind].members == rank).any(1))[0]
        ranks[kind] = [int(r) for r in groups[kind].members[row]]
    return GroupNames(names, descriptions, ranks)


def cut_list(values: Sequence[int]) -> str:
    """A list as the profiler writes it into a string: entries after the thirtieth are left out."""
    text = ", ".join(map(str, values[:LIST_LIMIT]))
    return f"[{text}, ...]" if len(values) > LIST_LIMIT else f"[{text}]"


def micro(ns: int) -> str:
    """Nanoseconds as microseconds with exactly three decimals."""
    return f"{ns // 1000}.{ns % 1000:03d}" if ns >= 0 else f"-{-ns // 1000}.{-ns % 1000:03d}"


@dataclass(slots=True)
class RankTrace:
    """Collects the events of one rank."""

    config: SimConfig
    rank: int
    groups: GroupNames
    events: list[str] = field(default_factory=list)
    external: int = 1
    correlation: int = 0
    sequence: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COMM_STREAMS, FIRST_SEQUENCE))

    @property
    def pid(self) -> int:
        """Process id of the training process."""
        return 2_000 + 31 * self.rank

    @property
    def device(self) -> int:
        """Index of the accelerator on its host."""
        return self.rank % self.config.ranks_per_host

    def thread(self, autograd: bool) -> int:
        """Thread id of the main or of the autograd thread."""
        return self.pid + 17 if autograd else self.pid

    def complete(self, category: str, name: str, pid: int, tid: int, start: int, end: int, args: str) -> None:
        """Append one complete event; ``args`` is the inside of the JSON object."""
        self.events.append(f'  {{\n    "ph": "X", "cat": "{category}", "name": {name}, "pid": {pid}, "tid": {tid},\n'
                           f'    "ts": {micro(start)}, "dur": {micro(end - start)},\n    "args": {{\n      {args}\n    }}\n  }}')

    def cpu(self, name: str, autograd: bool, start: int, end: int, args: str = "", category: str = "cpu_op") -> int:
        """Append a CPU range and return its external id."""
        self.external += 1
        tid = self.thread(autograd)
        index = self.external - 2
        extra = f"{args}, " if args else ""
        self.complete(category, json.dumps(name), self.pid, tid, start, end,
                      f'"External id": {self.external},"Record function id": 0, {extra}"Ev Idx": {index}')
        return self.external

    def call(self, name: str, autograd: bool, start: int, end: int, external: int) -> int:
        """Append a CUDA runtime call and return its correlation id."""
        self.correlation += 1
        self.complete("cuda_runtime", f'"{name}"', self.pid, self.thread(autograd), start, end,
                      f'"External id": {external}, "cbid": {_CALLS[name]}, "correlation": {self.correlation}')
        return self.correlation

    def flow(self, correlation: int, autograd: bool, call_at: int, stream: int, start: int) -> None:
        """Append the arrow from a runtime call to its device event."""
        self.events.append(f'  {{\n    "ph": "s", "id": {correlation}, "pid": {self.pid}, "tid": {self.thread(autograd)}, '
                           f'"ts": {micro(call_at)},\n    "cat": "ac2g", "name": "ac2g"\n  }}')
        self.events.append(f'  {{\n    "ph": "f", "id": {correlation}, "pid": {self.device}, "tid": {stream}, '
                           f'"ts": {micro(start)},\n    "cat": "ac2g", "name": "ac2g", "bp": "e"\n  }}')

    def kernel(self, name: str, external: int, correlation: int, stream: int, start: int, end: int, grid: int, block: int, extra: str = "") -> None:
        """Append a kernel."""
        sms = self.config.device.num_sms
        blocks = round(grid / sms, 6)
        self.complete("kernel", json.dumps(name), self.device, stream, start, end,
                      f'"External id": {external},\n      "queued": 0, "device": {self.device}, "context": 1,\n      '
                      f'"stream": {stream}, "correlation": {correlation},\n      "registers per thread": 96,\n      '
                      f'"shared memory": 0,\n      "blocks per SM": {blocks},\n      "warps per SM": {round(blocks * block / 32, 6)},\n      '
                      f'"grid": [{grid}, 1, 1],\n      "block": [{block}, 1, 1],\n      "est. achieved occupancy %": 0{extra}')

    def copy(self, name: str, external: int, correlation: int, start: int, end: int, num_bytes: int) -> None:
        """Append a copy between host and device."""
        rate = num_bytes / max(end - start, 1)
        self.complete("gpu_memcpy", f'"{name}"', self.device, _COMPUTE_STREAM, start, end,
                      f'"External id": {external},\n      "device": {self.device}, "context": 1,\n      "stream": {_COMPUTE_STREAM}, '
                      f'"correlation": {correlation},\n      "bytes": {num_bytes}, "memory bandwidth (GB/s)": {rate}')


@dataclass(frozen=True, slots=True)
class Times:
    """One operation's times on the local clock."""

    cpu_start: int
    cpu_end: int
    launch: int
    start: int
    end: int


def write_ops(trace: RankTrace, records: Sequence[Record], local: IntArray) -> None:
    """Append the events of all operations; ``local`` is [operations, 5] of :class:`Times`."""
    for record, row in zip(records, local.tolist(), strict=True):
        times = Times(*row)
        op = record.op
        if isinstance(op, Kernel):
            _kernel(trace, op, record.autograd, times)
        elif isinstance(op, Exchange | Reduce):
            _collective(trace, op, record.autograd, times)
        elif isinstance(op, HostWork):
            if op.visible and times.cpu_end > times.cpu_start:
                trace.cpu(op.name, record.autograd, times.cpu_start, times.cpu_end, category="user_annotation")
        else:
            _copy(trace, op, record.autograd, times)


def _call_end(times: Times) -> int:
    return max(times.launch + 1, min(times.launch + int(LAUNCH_CALL_NS), times.cpu_end - 200))


def _kernel(trace: RankTrace, op: Kernel, autograd: bool, times: Times) -> None:
    external = trace.cpu(op.name, autograd, times.cpu_start, times.cpu_end, _shapes(op, trace.rank))
    correlation = trace.call("cudaLaunchKernel", autograd, times.launch, _call_end(times), external)
    trace.kernel(op.kernel, external, correlation, _COMPUTE_STREAM, times.start, times.end, op.grid, op.block)
    trace.flow(correlation, autograd, times.launch, _COMPUTE_STREAM, times.start)


def _copy(trace: RankTrace, op: Op, autograd: bool, times: Times) -> None:
    back = isinstance(op, ReadBack)
    external = trace.cpu(op.name, autograd, times.cpu_start, times.cpu_end)
    call_end = _call_end(times)
    correlation = trace.call("cudaMemcpyAsync", autograd, times.launch, call_end, external)
    name = "Memcpy DtoH (Device -> Pageable)" if back else "Memcpy HtoD (Pinned -> Device)"
    trace.copy(name, external, correlation, times.start, times.end, op.num_bytes)  # type: ignore[attr-defined]
    trace.flow(correlation, autograd, times.launch, _COMPUTE_STREAM, times.start)
    if back:
        trace.call("cudaStreamSynchronize", autograd, call_end + 100, max(times.cpu_end - 300, call_end + 200), external)


def _collective(trace: RankTrace, op: Exchange | Reduce, autograd: bool, times: Times) -> None:
    kind, meta = _meta(trace, op)
    group = "ep" if isinstance(op, Exchange) else op.group
    stream = COMM_STREAMS[group]
    trace.cpu(op.name, autograd, times.cpu_start, times.cpu_end)
    inner = times.cpu_start + (times.launch - times.cpu_start) // 3
    external = trace.cpu("record_param_comms", autograd, inner, times.cpu_end - 500, meta)
    trace.call("cudaEventRecord", autograd, times.launch - 4_000, times.launch - 3_000, external)
    trace.call("cudaStreamWaitEvent", autograd, times.launch - 2_500, times.launch - 1_500, external)
    correlation = trace.call("cudaLaunchKernelExC", autograd, times.launch, _call_end(times), external)
    name = "ncclDevKernel_SendRecv" if kind.startswith("all_to_all") else (
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL" if op.dtype == "BFloat16" else "ncclDevKernel_AllReduce_Sum_f32_RING_LL")  # type: ignore[union-attr]
    trace.kernel(f"{name}(ncclDevKernelArgsStorage<4096ul>)", external, correlation, stream, times.start, times.end, 24, 512, f",\n      {meta}")
    trace.flow(correlation, autograd, times.launch, stream, times.start)


def _meta(trace: RankTrace, op: Exchange | Reduce) -> tuple[str, str]:
    """The communication arguments: collective name and the inside of the JSON object."""
    group = "ep" if isinstance(op, Exchange) else op.group
    members = trace.groups.ranks[group]
    if isinstance(op, Exchange):
        index, member = members[0] // len(members), members.index(trace.rank)
        out, into = op.sent[0, index, member].tolist(), op.sent[0, index, :, member].tolist()
        kind, dtype = "all_to_allv", "BFloat16"
        nelems = (sum(out) * op.row_elements, sum(into) * op.row_elements)
    else:
        out, into, kind, dtype, nelems = [], [], op.collective, op.dtype, (op.elements, op.elements)
    sequence = trace.sequence[group]
    trace.sequence[group] += 1
    return kind, (f'"Collective name": "{kind}",\n      "In msg nelems": {nelems[0]}, "Out msg nelems": {nelems[1]}, '
                  f'"Group size": {len(members)}, "dtype": "{dtype}",\n      "In split size": "{cut_list(out)}", '
                  f'"Out split size": "{cut_list(into)}",\n      "Process Group Name": "{trace.groups.names[group]}", '
                  f'"Process Group Description": "{trace.groups.descriptions[group]}", '
                  f'"Process Group Ranks": "{cut_list(members)}", "Seq": {sequence}')


def _shapes(op: Kernel, rank: int) -> str:
    """``Input Dims`` and their companions."""
    if not op.dims:
        return ""
    rows = 0 if op.rows is None else int(op.rows[rank])
    dims = [[rows if d == "R" else int(d) for d in shape] for shape in op.dims]
    strides = [[int(np.prod(shape[i + 1:], dtype=np.int64)) for i in range(len(shape))] for shape in dims]
    return (f'"Concrete Inputs": {json.dumps([""] * len(dims))}, "Input type": {json.dumps(op.types)}, '
            f'"Input Strides": {json.dumps(strides)}, "Input Dims": {json.dumps(dims)}')


def write_spans(trace: RankTrace, records: Sequence[Record], local: IntArray) -> None:
    """Append the ``moescope::`` ranges: on the CPU thread, and on every stream that their kernels use."""
    for span, first, last in _runs(records):
        name = json.dumps(span.name)
        external = trace.cpu(span.name, records[first].autograd, int(local[first, 0]) - 400, int(local[last, 1]) + 300, category="user_annotation")
        _device_ranges(trace, name, records[first:last + 1], local[first:last + 1], external)


def _runs(records: Sequence[Record]) -> Iterator[tuple[Span, int, int]]:
    """Maximal runs of operations in one span: (span, first, last)."""
    first = 0
    for index in range(1, len(records) + 1):
        span = records[first].op.span
        if index == len(records) or records[index].op.span != span:
            if span is not None:
                yield span, first, index - 1
            first = index


def stream_of(op: Op) -> int | None:
    """The stream that an operation's device event runs on."""
    if isinstance(op, HostWork):
        return None
    if isinstance(op, Exchange | Reduce):
        return COMM_STREAMS["ep" if isinstance(op, Exchange) else op.group]
    return _COMPUTE_STREAM


def _device_ranges(trace: RankTrace, name: str, records: Sequence[Record], local: IntArray, external: int) -> None:
    bounds: dict[int, tuple[int, int]] = {}
    for record, row in zip(records, local, strict=True):
        stream = stream_of(record.op)
        if stream is not None:
            low, high = bounds.get(stream, (int(row[3]), int(row[4])))
            bounds[stream] = (min(low, int(row[3])), max(high, int(row[4])))
    for stream, (low, high) in bounds.items():
        trace.complete("gpu_user_annotation", name, trace.device, stream, low - 1, high + 2, f'"External id": {external}')


def write_step(trace: RankTrace, step: int, start: int, end: int, records: Sequence[Record], local: IntArray) -> None:
    """Append ``ProfilerStep#N``, on the CPU and on the streams."""
    name = f"ProfilerStep#{step}"
    external = trace.cpu(name, False, start, end, category="user_annotation")
    _device_ranges(trace, json.dumps(name), records, local, external)


def finish(trace: RankTrace, first: int, last: int) -> str:
    """The whole file."""
    config, pid = trace.config, trace.pid
    head = {
        "schemaVersion": 1,
        "deviceProperties": [_properties(config, index) for index in range(min(config.ranks_per_host, 8))],
        "cupti_version": 28, "cuda_runtime_version": 12_090, "cuda_driver_version": 13_000,
        "trace_id": f"{config.seed:016X}{trace.rank:016X}",
        "profile_memory": 1, "record_shapes": 1,
        "distributedInfo": {"backend": "nccl", "rank": trace.rank, "world_size": config.ranks, "pg_count": _num_groups(config),
                            "pg_config": trace.groups.config(), "nccl_version": "2.27.7"},
        "host_name": config.host_name(config.host_of(trace.rank)),
        "displayTimeUnit": "ms", "baseTimeNanoseconds": BASE_NS,
    }
    names = [_meta_event("process_name", first, pid, 0, '"name": "python"'), _meta_event("process_labels", first, pid, 0, '"labels": "CPU"'),
             _meta_event("process_name", first, trace.device, 0, '"name": "python"'),
             _meta_event("process_labels", first, trace.device, 0, f'"labels": "GPU {trace.device}"'),
             _meta_event("thread_name", first, pid, pid, f'"name": "thread {pid} (python)"'),
             _meta_event("thread_name", first, pid, pid + 17, f'"name": "thread {pid + 17} (pt_autograd_0)"')]
    names += [_meta_event("thread_name", first, trace.device, s, f'"name": "stream {s} "') for s in (_COMPUTE_STREAM, *COMM_STREAMS.values())]
    tail = [f'  {{\n    "ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler",\n'
            f'    "ts": {micro(first)}, "dur": {micro(last - first)},\n    "args": {{\n      "Op count": 0\n    }}\n  }}',
            f'  {{\n    "ph": "i", "s": "g", "name": "Iteration Start: PyTorch Profiler", "pid": "Traces", "tid": "Trace PyTorch Profiler", "ts": {micro(first)}\n  }}',
            f'  {{\n    "ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": {micro(last)}\n  }}']
    body = ",\n".join((*names, *trace.events, *tail))
    opening = json.dumps(head, indent=2)[:-2]
    return f'{opening},\n  "traceEvents": [\n{body}\n  ],\n  "traceName": "rank{trace.rank}.json"\n}}\n'


def _meta_event(name: str, at: int, pid: int, tid: int, args: str) -> str:
    return f'  {{\n    "name": "{name}", "ph": "M", "ts": {micro(at)}, "pid": {pid}, "tid": {tid},\n    "args": {{\n      {args}\n    }}\n  }}'


def _num_groups(config: SimConfig) -> int:
    groups = config.ranks // config.ep
    return 1 + groups + (config.ep if groups > 1 else 0)


def _properties(config: SimConfig, index: int) -> dict[str, object]:
    device = config.device
    return {"id": index, "name": device.name, "totalGlobalMem": device.memory_bytes, "computeMajor": 9, "computeMinor": 0,
            "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048, "regsPerBlock": 65_536, "warpSize": 32,
            "sharedMemPerBlock": 49_152, "numSms": device.num_sms, "regsPerMultiprocessor": 65_536,
            "sharedMemPerBlockOptin": 232_448, "sharedMemPerMultiprocessor": 233_472}
