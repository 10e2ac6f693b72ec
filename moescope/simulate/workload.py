"""Which tokens go where: routing drawn per source rank, and what it means for rows on the wire and expert kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moescope.simulate.config import SimConfig
from moescope.simulate.faults import Fault

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

_ROUTING = 1


@dataclass(frozen=True, slots=True)
class Routing:
    """Selections of one microbatch in one layer, for one scenario."""

    counts: IntArray
    """[ranks, experts]: tokens that each source rank sends to each expert."""
    sent: IntArray
    """[groups, n, n]: rows from member i to member j of each expert-parallel group."""
    held: IntArray
    """[ranks, local experts]: rows that each rank's own experts receive."""

    @property
    def received(self) -> IntArray:
        """Rows received by each rank, [ranks]."""
        return np.asarray(self.held.sum(-1))


def route(config: SimConfig, faults: Sequence[Fault], step: int, microbatch: int, layer: int) -> Routing:
    """Draw the routing of one microbatch; the same seed gives the same draw whatever the other faults are."""
    ep, experts = config.ep, config.num_experts
    popularity_rng = np.random.default_rng([config.seed, _ROUTING, layer])
    popularity = np.tile(np.exp(config.router_spread * popularity_rng.standard_normal(experts)), (config.ranks, 1))
    for fault in faults:
        popularity = fault.popularity(popularity, layer, step, ep)
    chosen = at_most_once(popularity, config.model.top_k)
    rng = np.random.default_rng([config.seed, _ROUTING, layer, step, microbatch])
    counts = rng.multinomial(config.tokens * config.model.top_k, chosen)
    grouped = counts.reshape(config.ranks // ep, ep, ep, experts // ep)
    return Routing(counts=counts, sent=grouped.sum(-1), held=grouped.sum(1).reshape(config.ranks, -1))


def at_most_once(popularity: FloatArray, top_k: int) -> FloatArray:
    """Probabilities [..., E] in proportion to ``popularity``, capped so that no token takes an expert twice."""
    share = np.asarray(popularity / popularity.sum(-1, keepdims=True), dtype=np.float64)
    limit = 1.0 / top_k
    while (share > limit * (1 + 1e-12)).any():
        full = share >= limit
        free = np.where(full, 0.0, share).sum(-1, keepdims=True)
        left = 1 - limit * full.sum(-1, keepdims=True)
        share = np.where(full, limit, share * left / np.maximum(free, 1e-300))
    return np.asarray(share / share.sum(-1, keepdims=True), dtype=np.float64)
