"""A baseline that ``moescope baseline`` measured: what this allocation's products, memory and exchanges can do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from moescope.align.robust import FloatArray, lad_line
from moescope.align.transfer import TransferModel
from moescope.errors import InputUnreadableError

SCHEMA = "moescope.baseline/1"
MIN_EXCHANGES = 3
HEAD_BYTES = 64
"""The schema stands first in the file."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """``flops_per_ns``: the best rate of a product by element type; ``transfers``: by tier, as of ``fit_transfer``."""

    file: str
    device: str
    flops_per_ns: Mapping[str, float] = field(default_factory=dict)
    memory_bytes_per_ns: float | None = None
    transfers: Mapping[str, TransferModel] = field(default_factory=dict)


HINT = "Write one with moescope baseline on the machines of the run."


def is_baseline(file: Path) -> bool:
    """Whether the file begins as baselines do."""
    try:
        with file.open("rb") as stream:
            return f'"{SCHEMA}"'.encode() in stream.read(HEAD_BYTES)
    except OSError:
        return False


def load_document(file: Path) -> dict[str, Any]:
    """The file's JSON; raises ``InputUnreadableError`` where it is no baseline."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputUnreadableError(f"{file} cannot be read as a baseline: {error}", hint=HINT) from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise InputUnreadableError(f"{file} is no baseline: its schema is not {SCHEMA}", hint=HINT)
    return found


def read_baseline(file: Path) -> Baseline:
    """What an analysis needs of the file; raises ``InputUnreadableError`` where it is no baseline."""
    found = load_document(file)
    try:
        return Baseline(
            file=str(file),
            device=str(found.get("device", "")),
            flops_per_ns=_rates(found.get("gemm") or []),
            memory_bytes_per_ns=float(found["memory"]["gb_per_s"]) if found.get("memory") else None,
            transfers=_transfers(found),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputUnreadableError(f"{file} is damaged: {type(error).__name__}: {error}", hint=HINT) from error


def _rates(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The best rate over shapes and rows by element type, FLOPs per ns."""
    best: dict[str, float] = {}
    for row in rows:
        dtype = str(row["dtype"])
        best[dtype] = max(best.get(dtype, 0.0), float(row["rate_tflops"]) * 1e3)
    return best


def _transfers(found: Mapping[str, Any]) -> dict[str, TransferModel]:
    """``alpha + bottleneck bytes / B`` over the all-to-alls, for the tier that the baseline's ranks span."""
    num_hosts = len(found.get("hosts") or [])
    rows = found.get("collectives") or []
    if num_hosts > 1:  # of an even exchange alone is known what goes to other hosts
        tier, remote = "across hosts", 1 - 1 / num_hosts
        points = [(row["size_bytes"] * remote, row["time_us"]) for row in rows if row["collective"] == "all_to_all"]
    else:
        tier = "within host"
        exchanges = [row for row in rows if row["collective"] in ("all_to_all", "all_to_allv")]
        points = [(row["busbw_gb_per_s"] * row["time_us"] * 1e3, row["time_us"]) for row in exchanges]
    if len(points) < MIN_EXCHANGES:
        return {}
    moved, time_us = np.array(points, dtype=np.float64).T
    return {tier: _line(tier, moved, time_us * 1e3)}


def _line(tier: str, moved: FloatArray, time_ns: FloatArray) -> TransferModel:
    line = lad_line(moved, time_ns)
    largest = int(np.argmax(moved))
    slope = line.slope if line.slope > 0 else float(time_ns[largest] / max(moved[largest], 1.0))
    alpha = max(line.intercept, 0.0)
    residual = float(np.median(np.abs(time_ns - alpha - slope * moved)))
    return TransferModel(tier, alpha, 1 / slope, residual, len(moved), "baseline")
