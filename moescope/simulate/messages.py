"""Messages between pipeline stages: when they move, once both sides are there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moescope.simulate.config import SimConfig
from moescope.simulate.fabric import Fabric
from moescope.simulate.program import Transfer

if TYPE_CHECKING:
    from moescope.simulate.engine import Record

FloatArray = NDArray[np.float64]

STREAM_GAP_NS = 900.0


class Messages:
    """The communication streams of all pairs of neighbouring stages, and what was launched on them.

    A pair's two ranks have one stream each for their messages, which both launch in the same order, so a message that
    both have launched has none before it that waits. Neither side leaves before the other has come.
    """

    def __init__(self, config: SimConfig, fabric: Fabric):
        self._config, self._fabric = config, fabric
        self._free: dict[int, FloatArray] = {}
        """By boundary, when each rank's stream is free: [scenarios, ranks]."""
        self._launched: dict[tuple[int, int, bool], tuple[Record, FloatArray]] = {}
        self._ends: dict[tuple[tuple[int, int, bool], int | None], FloatArray] = {}

    def launch(self, record: Record, op: Transfer, ready: FloatArray, rng: np.random.Generator) -> None:
        """One side is launched and could begin at ``ready`` [scenarios, ranks]; with the second one both move.

        Fills in the records' start, end and undisturbed duration.
        """
        first = self._launched.pop(op.key, None)
        if first is None:
            self._launched[op.key] = record, ready
            return
        free = self._free.get(op.boundary, np.full(ready.shape, -np.inf)) + STREAM_GAP_NS
        sides = [np.rint(np.maximum(at, free)) for at in (first[1], ready)]
        stages = [first[0].op.stage, op.stage]
        ranks = [self._ranks(stage) for stage in stages]
        starts = [side[:, mine] for side, mine in zip(sides, ranks, strict=True)]
        lasts, jitter = self._fabric.message(op.num_bytes, (ranks[0], ranks[1]), rng)
        moved = np.maximum(*starts) + lasts[:-1]
        left = free - STREAM_GAP_NS
        for who, stage, mine, start in zip((first[0], record), stages, ranks, starts, strict=True):
            end = np.full(ready.shape, -np.inf)
            end[:, mine] = np.maximum(moved + jitter[mine], start)
            left[:, mine] = end[:, mine]
            self._ends[op.key, stage] = end
            who.start[mine], who.end[mine] = np.rint(start[0]), np.rint(end[0, mine])
            if who.together is not None:
                who.together[mine] = lasts[-1] + jitter[mine]
        self._free[op.boundary] = left

    def end(self, op: Transfer) -> FloatArray:
        """When a rank's side has ended, once for each side; long ago for ranks of other stages."""
        return self._ends.pop((op.key, op.stage))

    def _ranks(self, stage: int | None) -> NDArray[np.int64]:
        count = self._config.stage_ranks
        return np.arange(count) + (stage or 0) * count
