"""Which tokens go where: routing drawn per source rank, and what it means for rows on the wire and expert kernels."""

from __future__ import annotations

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


def route(config: SimConfig, faults: tuple[Fault, ...], step: int, microbatch: int, layer: int) -> Routing:
    """Draw the routing of one microbatch; the same seed gives the same draw whatever the other faults are."""
    model, ep = config.model, config.ep
    rng = np.random.default_rng([config.seed, _ROUTING, step, microbatch, layer])
    base = np.exp(config.router_spread * np.random.default_rng([config.seed, _ROUTING, layer]).standard_normal(model.num_experts))
    for fault in faults:
        base = fault.popularity(base, layer, step, ep)
    counts = rng.multinomial(config.tokens * model.top_k, _at_most_once(base, model.top_k), size=config.ranks)
    grouped = counts.reshape(config.ranks // ep, ep, ep, model.num_experts // ep)
    return Routing(counts=counts, sent=grouped.sum(-1), held=grouped.sum(1).reshape(config.ranks, -1))


def _at_most_once(popularity: FloatArray, top_k: int) -> FloatArray:
    """Probabilities [E] in which no expert exceeds 1 / top_k: a token chooses an expert at most once."""
    share = popularity / popularity.sum()
    limit = 1.0 / top_k
    while (share > limit * (1 + 1e-12)).any():
        full = share >= limit
        rest = share[~full].sum()
        share = np.where(full, limit, share * ((1 - limit * full.sum()) / rest))
    return share / share.sum()
