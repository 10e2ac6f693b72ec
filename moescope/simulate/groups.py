"""Process groups: who is in which, and what they are called."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moescope.simulate.config import SimConfig

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

DESCRIPTIONS = {"world": "default_pg", "ep": "ep", "edp": "edp", "dp": "dp", "pp": "pp"}


@dataclass(frozen=True, slots=True)
class Groups:
    """All process groups of one kind, which together hold every rank once."""

    kind: str
    """``world``, ``ep`` (one set of experts), ``edp`` (ranks that hold the same experts), and with a pipeline ``dp``
    (a stage) or ``pp`` (one rank of each stage)."""
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
    """The world; expert-parallel groups of consecutive ranks; where a stage has several, the groups across them.

    With a pipeline also its stages, and the groups of one rank of each stage.
    """
    ranks = np.arange(config.ranks)
    stages = ranks.reshape(config.pipeline, -1)
    ep = ranks.reshape(-1, config.ep)
    members = {"world": ranks[None], "ep": ep}
    if stages.shape[1] > config.ep:
        across = stages.reshape(config.pipeline, -1, config.ep).swapaxes(1, 2)
        members["edp"] = across.reshape(-1, across.shape[-1])
    if config.pipeline > 1:
        members |= {"dp": stages, "pp": stages.T.copy()}
    found: dict[str, Groups] = {}
    for kind, of_kind in members.items():
        found[kind] = Groups(kind, of_kind, sum(len(groups.members) for groups in found.values()))
    return found
