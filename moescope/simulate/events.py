"""Events of one rank's trace as text, laid out as torch 2.13 lays them out.

Times are local, in microseconds after ``BASE_NS`` with three decimals, so integer nanoseconds survive.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

BASE_NS = 1_790_857_026_000_000_000
"""``baseTimeNanoseconds``."""
LIST_LIMIT = 30
"""Entries of a list of communication arguments that the profiler keeps."""

CALLBACK_IDS = {
    "cudaLaunchKernel": 211,
    "cudaLaunchKernelExC": 430,
    "cudaMemcpyAsync": 41,
    "cudaStreamSynchronize": 131,
    "cudaEventRecord": 135,
    "cudaStreamWaitEvent": 147,
    "cudaMalloc": 20,
    "cudaFree": 22,
}

Interval = tuple[int, int]
"""Start and end, nanoseconds after ``BASE_NS``."""


def micro(ns: int) -> str:
    """Nanoseconds, at least 0, as microseconds with exactly three decimals."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def cut_list(values: Sequence[int]) -> str:
    """A list as the profiler writes it into a string: entries after the thirtieth are left out."""
    text = ", ".join(map(str, values[:LIST_LIMIT]))
    return f"[{text}, ...]" if len(values) > LIST_LIMIT else f"[{text}]"


@lru_cache(maxsize=4096)
def quoted(text: str) -> str:
    """A JSON string."""
    return json.dumps(text)


@dataclass(slots=True)
class EventLog:
    """Collects the events of one process and its device; every method appends one (``flow``: two)."""

    pid: int
    device: int
    num_sms: int
    events: list[str] = field(default_factory=list)
    external: int = 0
    """Last external id given."""
    correlation: int = 0
    """Last correlation id given."""
    autograd_thread: int = 17
    """The autograd thread's id, after the process id."""

    def thread(self, autograd: bool) -> int:
        """Id of the main or of the autograd thread."""
        return self.pid + self.autograd_thread if autograd else self.pid

    def complete(self, category: str, name: str, where: tuple[int, int], at: Interval, args: str) -> None:
        """A complete event of process and thread ``where``; ``args`` is the inside of a JSON object."""
        self.events.append(
            f'  {{\n    "ph": "X",\n    "cat": "{category}",\n    "name": {quoted(name)},\n    "pid": {where[0]},\n'
            f'    "tid": {where[1]},\n    "ts": {micro(at[0])},\n    "dur": {micro(at[1] - at[0])}\n    ,\n'
            f'    "args": {{\n      {args}\n    }}\n  }}'
        )

    def cpu(self, name: str, autograd: bool, at: Interval, args: str = "", *, category: str = "cpu_op") -> int:
        """A CPU range; returns its external id."""
        self.external += 1
        extra = f"{args}, " if args else ""
        inside = f'"External id": {self.external},"Record function id": 0, {extra}"Ev Idx": {self.external - 1}'
        self.complete(category, name, (self.pid, self.thread(autograd)), at, inside)
        return self.external

    def call(self, name: str, autograd: bool, at: Interval, external: int) -> int:
        """A CUDA runtime call; returns its correlation id."""
        self.correlation += 1
        inside = f'"External id": {external},\n      "cbid": {CALLBACK_IDS[name]}, "correlation": {self.correlation}'
        self.complete("cuda_runtime", name, (self.pid, self.thread(autograd)), at, inside)
        return self.correlation

    def flow(self, autograd: bool, call_at: int, stream: int, start: int) -> None:
        """The arrow from the last runtime call to its device event: two flow events."""
        for phase, pid, tid, at, binding in (
            ("s", self.pid, self.thread(autograd), call_at, ""),
            ("f", self.device, stream, start, ',\n    "bp": "e"'),
        ):
            self.events.append(
                f'  {{\n    "ph": "{phase}",\n    "id": {self.correlation},\n    "pid": {pid},\n    "tid": {tid},\n'
                f'    "ts": {micro(at)},\n    "cat": "ac2g",\n    "name": "ac2g"{binding}\n  }}'
            )

    def kernel(
        self, name: str, external: int, stream: int, at: Interval, *, grid: int, block: int, extra: str = ""
    ) -> None:
        """A kernel launched by the last runtime call."""
        blocks = grid / self.num_sms
        self.complete(
            "kernel",
            name,
            (self.device, stream),
            at,
            f'"External id": {external},\n      "queued": 0, "device": {self.device}, "context": 1,\n      '
            f'"stream": {stream}, "correlation": {self.correlation},\n      "registers per thread": 96,\n      '
            f'"shared memory": 0,\n      "blocks per SM": {blocks:.6g},\n      '
            f'"warps per SM": {blocks * block / 32:.6g},\n      "grid": [{grid}, 1, 1],\n      '
            f'"block": [{block}, 1, 1],\n      "est. achieved occupancy %": 0{extra}',
        )

    def copy(self, name: str, external: int, stream: int, at: Interval, num_bytes: int) -> None:
        """A copy started by the last runtime call."""
        self.complete(
            "gpu_memcpy",
            name,
            (self.device, stream),
            at,
            f'"External id": {external},\n      "device": {self.device}, "context": 1,\n      "stream": {stream}, '
            f'"correlation": {self.correlation},\n      "bytes": {num_bytes}, '
            f'"memory bandwidth (GB/s)": {num_bytes / max(at[1] - at[0], 1)}',
        )

    def memory(self, autograd: bool, at: int, num_bytes: int, address: int, totals: tuple[int, int]) -> None:
        """An allocation, or a release where ``num_bytes`` is negative; ``totals`` are allocated and reserved bytes."""
        self.external += 1
        self.events.append(
            '  {\n    "ph": "i",\n    \n    "cat": "cpu_instant_event",\n    "s": "t",\n    "name": "[memory]",\n'
            f'    "pid": {self.pid},\n    "tid": {self.thread(autograd)},\n    "ts": {micro(at)}\n    ,\n'
            f'    "args": {{\n      "Total Reserved": {totals[1]}, "Total Allocated": {totals[0]}, '
            f'"Bytes": {num_bytes}, "Device Id": {self.device}, "Device Type": 1, "Addr": {address}, '
            f'"finished": false, "Ev Idx": {self.external - 1}\n    }}\n  }}'
        )

    def label(self, name: str, at: int, pid: int, tid: int, args: str) -> None:
        """A metadata event."""
        self.events.append(
            f'  {{\n    "ph": "M",\n    "name": "{name}",\n    "ts": {micro(at)},\n    "pid": {pid},\n'
            f'    "tid": {tid},\n    "args": {{\n      {args}\n    }}\n  }}'
        )
