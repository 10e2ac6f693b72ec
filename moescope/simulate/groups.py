"""Process groups: who is in which, and what they are called."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moescope.simulate.config import SimConfig

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

DESCRIPTIONS = {"world": "default_pg", "ep": "ep", "edp": "edp"}


@dataclass(frozen=True, slots=True)
class Groups:
    """All process groups of one kind, which together hold every rank once."""

    kind: str
    """``world``, ``ep`` (one set of experts) or ``edp`` (ranks that hold the same experts)."""
    members: IntArray
    """[groups, size] ranks."""
    first_name: int
    """Groups are named by consecutive numbers from here."""

    def gather(self, values: FloatArray) -> FloatArray:
        """[..., ranks] -> [..., groups, size]."""
        return values[..., self.members]

    def scatter(self, values: FloatArray) -> FloatArray:
        """[..., groups, size] -> [..., ranks]."""
        out = np.empty((*values.shape[:-2], self.members.size))
        out[..., self.members] = values
        return out

    def of(self, rank: int) -> int:
        """Index of the group that ``rank`` is in."""
        return int(np.flatnonzero((self.members == rank).any(1))[0])

    def name(self, index: int) -> str:
        """Name of one group, as torch numbers them."""
        return str(self.first_name + index)


def groups_of(config: SimConfig) -> dict[str, Groups]:
    """The world; expert-parallel groups of consecutive ranks; where there are several, the groups across them."""
    ranks = np.arange(config.ranks)
    ep = ranks.reshape(-1, config.ep)
    found = {"world": Groups("world", ranks[None], 0), "ep": Groups("ep", ep, 1)}
    if len(ep) > 1:
        found["edp"] = Groups("edp", ep.T.copy(), 1 + len(ep))
    return found
