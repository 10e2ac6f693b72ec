"""One rank's trace: every operation as CPU range, runtime calls and device event, the way Kineto links them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

import numpy as np
from moescope_hooks.names import RangeName, range_name
from numpy.typing import NDArray

from moescope.simulate import kernelnames as names
from moescope.simulate.engine import Record
from moescope.simulate.events import EventLog, Interval, cut_list
from moescope.simulate.groups import DESCRIPTIONS, Groups
from moescope.simulate.program import Communication, Copy, Exchange, HostWork, Join, Kernel, Op, Reduce, Shape, Transfer

IntArray = NDArray[np.int64]

COMPUTE_STREAM = 7
COMM_STREAMS = {"world": 20, "ep": 24, "edp": 28, "dp": 32}
MESSAGE_STREAMS = (36, 40)
"""Messages exchanged with the stage before, with the stage after."""
FIRST_SEQUENCE = 1_000
"""Collectives that each group has behind it when the profiler starts."""

_CALL_NS = 3_600
_GRID, _BLOCK = 132, 256
_COMM_GRID, _COMM_BLOCK = 24, 512
_EVENT_CALLS = (("cudaEventRecord", 3_000), ("cudaStreamWaitEvent", 1_500))
"""Calls that make a communication stream wait for compute, and how long before the launch they begin."""
_EVENT_CALL_NS = 900


@dataclass(frozen=True, slots=True)
class Times:
    """One operation's times on the local clock, nanoseconds after ``BASE_NS``."""

    cpu_start: int
    cpu_end: int
    launch: int
    start: int
    end: int

    @property
    def cpu(self) -> Interval:
        """The range on the CPU."""
        return self.cpu_start, self.cpu_end

    @property
    def call(self) -> Interval:
        """The runtime call that launches it."""
        return self.launch, max(self.launch + 1, min(self.launch + _CALL_NS, self.cpu_end - 200))

    @property
    def device(self) -> Interval:
        """The device event."""
        return self.start, self.end


def collective_name(op: Communication) -> str:
    """The name that torch records for a collective or a side of a message."""
    if isinstance(op, Transfer):
        return "send" if op.sends else "recv"
    return "all_to_allv" if isinstance(op, Exchange) else op.collective


def group_kind(op: Communication) -> str:
    """The kind of process group that a collective or a message runs in."""
    if isinstance(op, Transfer):
        return "pp"
    return "ep" if isinstance(op, Exchange) else op.group


@dataclass(slots=True)
class RankTrace:
    """Turns the records of one rank into events."""

    rank: int
    groups: dict[str, Groups]
    log: EventLog
    lost: frozenset[int] = frozenset()
    """Operations whose device events the profiler lost."""
    late: int = 0
    """Operations before the profiler began to record."""
    sequence: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*COMM_STREAMS, "pp"), FIRST_SEQUENCE))

    def write(self, records: Sequence[Record], local: IntArray, first: int) -> None:
        """Append all events of ``records``; ``local`` is [operations, 5], ``first`` the index of the first one."""
        for index, (record, row) in enumerate(zip(records, local.tolist(), strict=True), first):
            op, times = record.op, Times(*row)
            if isinstance(op, Communication):
                meta = self._meta(op)
                if index >= self.late:
                    self._collective(op, times, meta, lost=index in self.lost)
            elif index >= self.late:
                self._other(op, times)

    def _other(self, op: Op, times: Times) -> None:
        match op:
            case Kernel():
                external = self.log.cpu(op.name, op.autograd, times.cpu, self._shapes(op))
                self.log.call("cudaLaunchKernel", op.autograd, times.call, external)
                self.log.kernel(op.kernel, external, COMPUTE_STREAM, times.device, grid=_GRID, block=_BLOCK)
                self.log.flow(op.autograd, times.launch, COMPUTE_STREAM, times.start)
            case Copy():
                self._copy(op, times)
            case Join():
                external = self.log.cpu(op.name, op.autograd, times.cpu)
                self.log.call("cudaStreamWaitEvent", op.autograd, times.call, external)
            case HostWork() if op.name and times.cpu_end > times.cpu_start:
                self._host_work(op, times)

    def _copy(self, op: Copy, times: Times) -> None:
        external = self.log.cpu(op.name, op.autograd, times.cpu)
        self.log.call("cudaMemcpyAsync", op.autograd, times.call, external)
        name = "Memcpy DtoH (Device -> Pageable)" if op.to_host else "Memcpy HtoD (Pinned -> Device)"
        self.log.copy(name, external, COMPUTE_STREAM, times.device, op.num_bytes)
        self.log.flow(op.autograd, times.launch, COMPUTE_STREAM, times.start)
        if op.to_host:
            begin = times.call[1] + 100
            waiting = (begin, max(times.cpu_end - 300, begin + 100))
            self.log.call("cudaStreamSynchronize", op.autograd, waiting, external)

    def _host_work(self, op: HostWork, times: Times) -> None:
        category = "cpu_op" if op.calls else "user_annotation"
        external = self.log.cpu(op.name, op.autograd, times.cpu, category=category)
        begin, length = times.cpu_start, times.cpu_end - times.cpu_start
        for call, share in op.calls:
            end = min(begin + int(share * length), times.cpu_end)
            self.log.call(call, op.autograd, (begin, end), external)
            begin = end

    def _collective(self, op: Communication, times: Times, meta: str, *, lost: bool) -> None:
        log, stream = self.log, comm_stream(op)
        log.cpu(op.name, op.autograd, times.cpu)
        inner = times.cpu_start + (times.launch - times.cpu_start) // 3
        annotation = f"nccl:{collective_name(op)}"
        if isinstance(op, Transfer):
            annotation += f" {op.stage}{'->' if op.sends else '<-'}{op.peer}"
        marked = log.cpu(annotation, op.autograd, (inner, times.cpu_end - 400), category="user_annotation")
        external = log.cpu("record_param_comms", op.autograd, (inner + 200, times.cpu_end - 500), meta)
        for call, before in _EVENT_CALLS:
            begin = times.launch - before
            log.call(call, op.autograd, (begin, begin + _EVENT_CALL_NS), external)
        log.call("cudaLaunchKernelExC", op.autograd, times.call, external)
        if not lost:
            extra = f",\n      {meta}"
            log.kernel(_kernel(op), external, stream, times.device, grid=_COMM_GRID, block=_COMM_BLOCK, extra=extra)
            log.flow(op.autograd, times.launch, stream, times.start)
            self._device_range(annotation, stream, times.device, marked)

    def _meta(self, op: Communication) -> str:
        """The communication arguments: the inside of a JSON object."""
        kind = group_kind(op)
        groups = self.groups[kind]
        index = groups.of(self.rank)
        members = groups.members[index].tolist()
        if isinstance(op, Exchange):
            member = members.index(self.rank)
            out, into = op.sent[0, index, member].tolist(), op.sent[0, index, :, member].tolist()
            dtype, elements = "BFloat16", (sum(out) * op.row_elements, sum(into) * op.row_elements)
        else:
            dtype = "BFloat16" if isinstance(op, Transfer) else op.dtype
            out, into, elements = [], [], (op.elements, op.elements)
        peer = ""
        if isinstance(op, Transfer):
            peer = f'"{"Dst" if op.sends else "Src"} Rank": {members[op.peer]}, '
        sequence = self.sequence[kind]
        self.sequence[kind] += 1
        return (
            f'"Collective name": "{collective_name(op)}",\n      "In msg nelems": {elements[0]}, '
            f'"Out msg nelems": {elements[1]}, "Group size": {len(members)}, "dtype": "{dtype}",\n      '
            f'"In split size": "{cut_list(out)}", "Out split size": "{cut_list(into)}",\n      '
            f'"Process Group Name": "{groups.name(index)}", "Process Group Description": "{DESCRIPTIONS[kind]}", '
            f'"Process Group Ranks": "{cut_list(members)}", {peer}"Seq": {sequence}'
        )

    def _shapes(self, op: Kernel) -> str:
        rows = 0 if op.rows is None else int(op.rows[self.rank])
        return shapes(op.dims, op.types, rows)

    def ranges(self, records: Sequence[Record], local: IntArray, first: int) -> None:
        """Append the ``moescope::`` ranges, on the CPU thread and on every stream that their kernels use."""
        for span, low, high in runs(records):
            if first + low >= self.late:
                rows = local[low : high + 1]
                name, autograd = range_name(span), records[low].op.autograd
                around = (int(rows[0, 0]) - 400, int(rows[-1, 1]) + 300)
                external = self.log.cpu(name, autograd, around, category="user_annotation")
                self.device_ranges(name, records[low : high + 1], rows, external)

    def device_ranges(self, name: str, records: Sequence[Record], local: IntArray, external: int) -> None:
        """Append a range on every stream: from the first device event to the last, padded as CUPTI pads it."""
        bounds: dict[int, tuple[int, int]] = {}
        for record, row in zip(records, local[:, 3:].tolist(), strict=True):
            stream = stream_of(record.op)
            if stream is not None:
                low, high = bounds.get(stream, (row[0], row[1]))
                bounds[stream] = (min(low, row[0]), max(high, row[1]))
        for stream, (low, high) in bounds.items():
            self._device_range(name, stream, (low, high), external)

    def _device_range(self, name: str, stream: int, at: Interval, external: int) -> None:
        padded = (at[0] - 1, at[1] + 2)
        where = (self.log.device, stream)
        self.log.complete("gpu_user_annotation", name, where, padded, f'"External id": {external}')


@lru_cache(maxsize=65_536)
def shapes(dims: tuple[Shape, ...], types: tuple[str, ...], rows: int) -> str:
    """``Input Dims`` and their companions, with ``rows`` where a shape says ``"R"``."""
    sizes = [[rows if isinstance(d, str) else d for d in shape] for shape in dims]
    strides = [[prod(shape[i + 1 :]) for i in range(len(shape))] for shape in sizes]
    return (
        f'"Concrete Inputs": {json.dumps([""] * len(dims))}, "Input type": {json.dumps(types)}, '
        f'"Input Strides": {json.dumps(strides)}, "Input Dims": {json.dumps(sizes)}'
    )


def _kernel(op: Communication) -> str:
    if isinstance(op, Reduce) and op.collective == "allreduce":
        return names.ALL_REDUCE[op.dtype]
    return names.SEND_RECV


def runs(records: Sequence[Record]) -> Iterator[tuple[RangeName, int, int]]:
    """Maximal runs of operations in one range: (range, first, last)."""
    first = 0
    for index in range(1, len(records) + 1):
        span = records[first].op.span
        if index == len(records) or records[index].op.span != span:
            if span is not None:
                yield span, first, index - 1
            first = index


def stream_of(op: Op) -> int | None:
    """The stream of an operation's device event, None without one."""
    if isinstance(op, HostWork | Join):
        return None
    return comm_stream(op) if isinstance(op, Communication) else COMPUTE_STREAM


def comm_stream(op: Communication) -> int:
    """The stream of a collective, or of the messages between two ranks."""
    if isinstance(op, Transfer):
        return MESSAGE_STREAMS[op.boundary == op.stage]
    return COMM_STREAMS[group_kind(op)]
