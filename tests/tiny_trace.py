"""Tiny Kineto traces of a few ranks, written event by event in nanoseconds.

rank = TinyRank(0, world_size=2)
rank.step(1, 0, 1000)
rank.kernel("sgemm", 100, 200, launched=50)
rank.exchange(300, 80, sent=[1, 3], received=[1, 2], seq=0)
write([rank, ...], tmp_path)

The host runs on thread ``HOST``, the device's kernels on stream ``COMPUTE`` and its collectives on stream ``COMM``.
Times count from ``BASE_NS``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BASE_NS = 1_700_000_000_000_000_000
HOST, WORKER = 1, 2
COMPUTE, COMM = 7, 20
ROW_ELEMENTS = 4
"""Elements of a row (token) in exchanges: bf16, so 8 bytes."""


@dataclass
class TinyRank:
    """One rank's trace under construction."""

    rank: int
    world_size: int
    host: str | None = "node0"
    device: str | None = "Tiny GPU"
    memory_bytes: int | None = None
    groups: dict[str, Sequence[int]] = field(default_factory=dict)
    """Process groups by name, as the trace's own table lists them."""
    events: list[dict[str, Any]] = field(default_factory=list)

    def add(self, name: str, category: str, start: int, dur: int, tid: int = HOST, **args: Any) -> None:
        """Any complete event."""
        self.events.append(
            {"ph": "X", "name": name, "cat": category, "ts": start / 1000, "dur": dur / 1000, "pid": 1, "tid": tid}
            | {"args": args}
        )

    def step(self, number: int, start: int, dur: int) -> None:
        """A profiler's step."""
        self.annotate(f"ProfilerStep#{number}", start, dur)

    def annotate(self, name: str, start: int, dur: int, tid: int = HOST) -> None:
        """A range recorded by user code, such as ``moescope::L0.mb0.experts``."""
        self.add(name, "user_annotation", start, dur, tid)

    def op(self, name: str, start: int, dur: int, tid: int = HOST, **args: Any) -> None:
        """An operation on the host."""
        self.add(name, "cpu_op", start, dur, tid, **args)

    def call(self, name: str, start: int, dur: int, **args: Any) -> None:
        """A call of the device's runtime."""
        self.add(name, "cuda_runtime", start, dur, **args)

    def kernel(
        self, name: str, start: int, dur: int, *, launched: int | None = None, stream: int = COMPUTE, **args: Any
    ) -> None:
        """A kernel, and the call that launched it at ``launched`` unless that is None."""
        self._on_device(name, "kernel", start, dur, launched, device=0, stream=stream, **args)

    def copy(
        self, start: int, dur: int, *, launched: int | None = None, name: str = "Memcpy DtoH", size: int = 8
    ) -> None:
        """A copy between host and device."""
        self._on_device(name, "gpu_memcpy", start, dur, launched, device=0, stream=COMPUTE, bytes=size)

    def exchange(
        self,
        start: int,
        dur: int,
        *,
        sent: Sequence[int],
        received: Sequence[int],
        group: Sequence[int] | None = None,
        name: str = "1",
        seq: int | None = None,
        launched: int | None = None,
    ) -> None:
        """An all-to-all of ``sent`` and ``received`` rows per peer, as NCCL kernels record it."""
        splits = {"In split size": str(list(sent)), "Out split size": str(list(received))}
        sizes = {"In msg nelems": sum(sent) * ROW_ELEMENTS, "Out msg nelems": sum(received) * ROW_ELEMENTS}
        args = {"Collective name": "all_to_allv", "dtype": "BFloat16", **sizes, **splits}
        args |= self._group(name, "ep", group, seq)
        self.kernel("ncclDevKernel_SendRecv(Args)", start, dur, launched=launched, stream=COMM, **args)

    def reduce(
        self,
        start: int,
        dur: int,
        *,
        elements: int = 1000,
        group: Sequence[int] | None = None,
        name: str = "0",
        seq: int | None = None,
        launched: int | None = None,
    ) -> None:
        """An all-reduce in single precision."""
        args = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": elements, "Out msg nelems": elements}
        args |= self._group(name, "dp", group, seq)
        self.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(Args)", start, dur, launched=launched, stream=COMM, **args)

    def gloo(self, issued: int, start: int, dur: int, *, sent: Sequence[int], received: Sequence[int]) -> None:
        """An all-to-all on the host: the call that issues it, and the backend's range on its own thread."""
        rows = [[sum(received), ROW_ELEMENTS], [sum(sent), ROW_ELEMENTS]]
        concrete = ["", "", "", str(list(received)), str(list(sent)), "False", "-1"]
        types = ["float", "float", "", "ScalarList", "ScalarList", "Scalar", "Scalar"]
        recorded = {"Input Dims": [*rows, [], [], [], [], []], "Input type": types, "Concrete Inputs": concrete}
        self.op("c10d::alltoall_base_", issued, 1, **recorded)
        one = {"Input Dims": [rows[1]], "Input type": ["float"], "Concrete Inputs": [""]}
        self.add("gloo:all_to_all", "user_annotation", start, dur, WORKER, **one)

    def memory(self, at: int, size: int, addr: int, total: int, *, on_gpu: bool = True) -> None:
        """An allocation (``size`` > 0) or a free of the block at ``addr``."""
        args = {"Bytes": size, "Addr": addr, "Total Allocated": total, "Total Reserved": 2 * total}
        args |= {"Device Type": int(on_gpu), "Device Id": 0 if on_gpu else -1}
        self.events.append(
            {
                "ph": "i",
                "name": "[memory]",
                "cat": "cpu_instant_event",
                "ts": at / 1000,
                "pid": 1,
                "tid": HOST,
                "s": "t",
            }
            | {"args": args}
        )

    def document(self, shift_ns: int = 0) -> dict[str, Any]:
        """The trace as the profiler would write it, with this host's clock ``shift_ns`` ahead."""
        properties = {"id": 0, "name": self.device, "totalGlobalMem": self.memory_bytes}
        return {
            "schemaVersion": 1,
            "baseTimeNanoseconds": BASE_NS + shift_ns,
            "deviceProperties": [properties] if self.device else [],
            "distributedInfo": {
                "backend": "nccl",
                "rank": self.rank,
                "world_size": self.world_size,
                "pg_config": [
                    {"pg_name": name, "pg_desc": "undefined", "ranks": list(g)} for name, g in self.groups.items()
                ],
            },
            **({"host_name": self.host} if self.host is not None else {}),
            "traceEvents": self.events,
        }

    def _on_device(self, name: str, category: str, start: int, dur: int, launched: int | None, **args: Any) -> None:
        correlation = len(self.events) + 1
        if launched is not None:
            self.call("cudaLaunchKernel", launched, 1, correlation=correlation)
            args["correlation"] = correlation
        self.add(name, category, start, dur, args["stream"], **args)

    def _group(self, name: str, description: str, group: Sequence[int] | None, seq: int | None) -> dict[str, Any]:
        ranks = list(group if group is not None else range(self.world_size))
        args = {"Process Group Name": name, "Process Group Description": description}
        args |= {"Process Group Ranks": str(ranks), "Group size": len(ranks)}
        return args | ({"Seq": seq} if seq is not None else {})


def write(ranks: Iterable[TinyRank], folder: Path, *, shift_ns: int = 0, name: str = "rank{rank}.json") -> Path:
    """Write one file per rank into ``folder``, all clocks ``shift_ns`` ahead, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in ranks:
        (folder / name.format(rank=rank.rank)).write_text(json.dumps(rank.document(shift_ns)), encoding="utf-8")
    return folder
