"""A step's expert counts and collectives as one packed row each: the rows of ``schema.PARTS``."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from moescope_hooks.names import RangeName
from moescope_hooks.packing import pack
from moescope_hooks.schema import list_chains


@dataclass(frozen=True)
class Collective:
    """One collective of this rank, apart from when it happened."""

    name: RangeName
    group: str
    send_bytes: Sequence[int]
    recv_bytes: Sequence[int]


@dataclass(frozen=True)
class LoadRow:
    """One layer and microbatch, on the host."""

    microbatch: int
    layer: int
    counts_E: Tensor
    dropped_E: Tensor | None
    figures: tuple[float | None, float | None, int | None]
    """Entropy, margin, bf16 flips."""


@dataclass(frozen=True)
class CollectiveRow:
    """One collective with its times."""

    collective: Collective
    seq: int
    arrival_ns: int
    end_ns: int


def load_blocks(rank: int, step: int, rows: Sequence[LoadRow]) -> list[Mapping[str, Any]]:
    """One packed row per number of experts; layers that can drop tokens apart from those that cannot."""
    kinds: dict[tuple[int, bool], list[LoadRow]] = {}
    for row in rows:
        kinds.setdefault((len(row.counts_E), row.dropped_E is not None), []).append(row)
    return [_load_block(rank, step, num_experts, members) for (num_experts, _), members in kinds.items()]


def _load_block(rank: int, step: int, num_experts: int, rows: Sequence[LoadRow]) -> Mapping[str, Any]:
    layers = [row.layer for row in rows]
    dropped = [row.dropped_E for row in rows if row.dropped_E is not None]
    entropy, margin, flips = zip(*(row.figures for row in rows), strict=True)
    return {
        "rank": rank,
        "step": step,
        "num_experts": num_experts,
        "microbatch": [row.microbatch for row in rows],
        "layer": layers,
        "counts": pack(torch.stack([row.counts_E for row in rows]).long(), layers),
        "dropped": pack(torch.stack(dropped).long(), layers) if dropped else None,
        "entropy": entropy,
        "margin": margin,
        "bf16_flips": flips,
    }


def collective_block(rank: int, step: int, rows: Sequence[CollectiveRow]) -> list[Mapping[str, Any]]:
    """One packed row for all collectives of the step, none for none."""
    if not rows:
        return []
    names = [row.collective.name for row in rows]
    groups = [row.collective.group for row in rows]
    distinct: dict[tuple[int, ...], int] = {}
    sent = [distinct.setdefault(tuple(row.collective.send_bytes), len(distinct)) for row in rows]
    received = [distinct.setdefault(tuple(row.collective.recv_bytes), len(distinct)) for row in rows]
    unit_bytes = math.gcd(*(size for sizes in distinct for size in sizes)) or 1
    lengths = [len(sizes) for sizes in distinct]
    chains = list_chains(sent, received, [(name.layer, name.phase, name.backward) for name in names])
    return [
        {
            "rank": rank,
            "step": step,
            "microbatch": [name.microbatch for name in names],
            "layer": [name.layer for name in names],
            "phase": [name.phase for name in names],
            "backward": [name.backward for name in names],
            "group": groups,
            "seq": pack(_column([row.seq for row in rows]), groups),
            "arrival_ns": pack(_column([row.arrival_ns for row in rows]), [0] * len(rows)),
            "duration_ns": pack(_column([row.end_ns - row.arrival_ns for row in rows])),
            "send": sent,
            "recv": received,
            "list_lengths": lengths,
            "unit_bytes": unit_bytes,
            "lists": [_pack_lists(list(distinct), chains, length, unit_bytes) for length in sorted(set(lengths))],
        }
    ]


def _pack_lists(distinct: Sequence[tuple[int, ...]], chains: Sequence[Hashable], length: int, unit_bytes: int) -> bytes:
    chosen = [number for number, sizes in enumerate(distinct) if len(sizes) == length]
    values = torch.tensor([distinct[number] for number in chosen], dtype=torch.int64).reshape(len(chosen), length)
    return pack(values // unit_bytes, [chains[number] for number in chosen])


def _column(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64).reshape(-1, 1)
