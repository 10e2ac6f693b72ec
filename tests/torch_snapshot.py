"""Memory snapshots as torch 2.13 writes them: the dictionary of ``torch.cuda.memory._snapshot``, built by hand.

snapshot = TinySnapshot()
snapshot.segment(0, 1000, [(600, "active_allocated", LINEAR), (400, "inactive", [])])
snapshot.act("alloc", 0, 600, LINEAR)
snapshot.write(folder / "rank0_memory.pickle")
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Stack = Sequence[tuple[str, int, str]]

SITE = "/env/lib/python3.11/site-packages/torch"
LINEAR: Stack = (
    (f"{SITE}/nn/modules/linear.py", 125, "forward"),
    (f"{SITE}/nn/modules/module.py", 1750, "_call_impl"),
    ("/job/model.py", 88, "forward"),
)
WEIGHTS: Stack = ((f"{SITE}/nn/modules/module.py", 900, "_apply"), ("/job/train.py", 20, "build"))
ADAM: Stack = ((f"{SITE}/optim/adam.py", 180, "_init_group"), ("/job/train.py", 61, "step"))
GRADIENT: Stack = (("accumulate_grad.cpp", 0, "torch::autograd::AccumulateGrad::apply"),)
EXCHANGE: Stack = ((f"{SITE}/distributed/distributed_c10d.py", 4000, "all_to_all_single"), ("/job/moe.py", 9, "run"))


@dataclass
class TinySnapshot:
    """One rank's snapshot under construction; addresses of segments are thousands."""

    segments: list[dict[str, Any]] = field(default_factory=list)
    trace: list[dict[str, Any]] = field(default_factory=list)

    def segment(self, address: int, total: int, blocks: Sequence[tuple[int, str, Stack]]) -> None:
        """One segment; ``blocks``: (size, state, stack), which fill it."""
        parts, at = [], address
        for size, state, stack in blocks:
            parts.append(
                {"address": at, "size": size, "requested_size": size - 8, "state": state, "frames": frames(stack)}
            )
            at += size
        held = sum(size for size, state, _ in blocks if state == "active_allocated")
        active = sum(size for size, state, _ in blocks if state != "inactive")
        self.segments.append(
            {"device": 0, "address": address, "total_size": total, "allocated_size": held, "active_size": active}
            | {"requested_size": held, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0)}
            | {"is_expandable": False, "registration_counter": -1, "frames": [], "blocks": parts}
        )

    def act(self, action: str, address: int = 0, size: int = 0, stack: Stack = (), **more: Any) -> None:
        """One entry of the history."""
        place = {"device_free": size} if action == "oom" else {"addr": address}
        self.trace.append(
            {"action": action, **place, "size": size, "stream": 0, "time_us": 1_700_000_000_000_000 + len(self.trace)}
            | {"compile_context": "N/A", "user_metadata": "", "frames": frames(stack), **more}
        )

    def data(self) -> dict[str, Any]:
        """The whole dictionary."""
        settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "expandable_segments": False}
        return {
            "segments": self.segments,
            "device_traces": [self.trace],
            "allocator_settings": settings,
            "external_annotations": [],
        }

    def write(self, file: Path) -> Path:
        """The pickle, as ``_dump_snapshot`` writes it."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(pickle.dumps(self.data()))
        return file


def frames(stack: Stack) -> list[dict[str, Any]]:
    """A stack as torch records it, innermost first."""
    return [{"filename": file, "line": line, "name": name} for file, line, name in stack]
