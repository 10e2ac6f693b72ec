"""What is measured, and for how long."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moescope.errors import MoescopeError

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_allv")
PARTS = ("gemm", "collectives", "copies")

NUM_GROUPS = 8
CPU_SHAPES = ((1024, 512), (512, 1024))
GPU_SHAPES = ((4096, 2048), (2048, 2048))


class PlanError(MoescopeError):
    """A plan that cannot be carried out."""

    def __init__(self, message: str, *, hint: str = ""):
        super().__init__(message, hint=hint, code="bad-baseline")


@dataclass(frozen=True, slots=True)
class Plan:
    """One baseline; fields left empty are chosen for the device (:meth:`resolved`)."""

    parts: tuple[str, ...] = PARTS
    shapes: tuple[tuple[int, int], ...] = ()
    """Weights [k, n] as (n, k)."""
    rows: tuple[int, ...] = ()
    """M: rows of a single product, rows per expert of a grouped one."""
    groups: int = NUM_GROUPS
    dtype: str = ""
    max_bytes: int = 0
    """Largest message of the collectives."""
    min_bytes: int = 1024
    factor: int = 4
    seconds: float = 0.05
    """Time spent on every single measurement, beside the first few calls."""
    collectives: tuple[str, ...] = field(default=COLLECTIVES)

    def resolved(self, *, on_gpu: bool) -> Plan:
        """The plan with every choice made for the device."""
        default_rows = (16, 64, 256, 1024, 4096, 16384) if on_gpu else (16, 64, 256, 1024)
        return Plan(
            parts=self.parts,
            shapes=self.shapes or (GPU_SHAPES if on_gpu else CPU_SHAPES),
            rows=self.rows or default_rows,
            groups=self.groups,
            dtype=self.dtype or ("bfloat16" if on_gpu else "float32"),
            max_bytes=self.max_bytes or (1 << 30 if on_gpu else 1 << 24),
            min_bytes=self.min_bytes,
            factor=self.factor,
            seconds=self.seconds,
            collectives=self.collectives,
        )

    def sizes(self) -> tuple[int, ...]:
        """Message sizes in bytes, ``min_bytes`` times powers of ``factor`` up to ``max_bytes``."""
        sizes, size = [], self.min_bytes
        while size <= self.max_bytes:
            sizes.append(size)
            size *= self.factor
        return tuple(sizes)

    def check(self) -> None:
        """Refuse what cannot be measured, naming the option."""
        if unknown := set(self.parts) - set(PARTS):
            raise PlanError(f"nothing to measure is called {sorted(unknown)[0]!r}", hint=f"One of: {', '.join(PARTS)}.")
        if self.factor < 2 or self.min_bytes < 1:
            raise PlanError("message sizes must grow: the factor is at least 2 and the smallest size at least 1 byte")
        if self.max_bytes and self.max_bytes < self.min_bytes:
            raise PlanError(f"the largest message ({self.max_bytes} bytes) is below the smallest ({self.min_bytes})")
        if any(side < 1 for shape in self.shapes for side in shape) or any(rows < 1 for rows in self.rows):
            raise PlanError("shapes and rows are positive numbers", hint="For example --shape 4096x2048 --rows 64,256.")
        if self.dtype not in ("", "bfloat16", "float16", "float32"):
            raise PlanError(f"dtype {self.dtype!r} is not measured", hint="bfloat16, float16 or float32")


def weights_of_run(run: Path) -> tuple[tuple[tuple[int, int], ...], int]:
    """(weights (n, k), experts per rank) of the model in a run's ``run.json``.

    The weights are an expert's way up and down, and the attention's square one. Raises ``PlanError`` where the run does
    not say its model's sizes.
    """
    file = run / "run.json"
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        model, parallel = found["model"], found.get("parallel") or {}
        experts: Mapping[str, Any] = model.get("moe") or model
        hidden = int(model["dim"] if "dim" in model else model["hidden"])
        inner = int(experts["expert_hidden_dim"] if "expert_hidden_dim" in experts else experts["expert_hidden"])
        num_experts = int(experts["num_experts"] if "num_experts" in experts else experts["experts"])
        groups = max(num_experts // int(parallel.get("ep_size") or 1), 1)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PlanError(
            f"{file} does not say the sizes of a model: {type(error).__name__}: {error}",
            hint="Name the weights with --shape NxK and the experts of a rank with --groups.",
        ) from error
    return ((inner, hidden), (hidden, inner), (hidden, hidden)), groups
