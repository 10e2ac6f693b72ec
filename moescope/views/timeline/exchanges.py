"""The collectives of a timeline: which one a rank was in, and whose waits are long enough to link to their cause."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from moescope.views.model import Collective, CollectiveRank

MOST_OPEN = 64
"""How many collectives of one rank may overlap."""


@dataclass(frozen=True, slots=True)
class _Spell:
    start_ns: int
    end_ns: int
    longest_wait_ns: int
    collective: Collective


class Exchanges:
    """Collectives by rank and time; moments are ns since ``base_ns``."""

    def __init__(self, collectives: Sequence[Collective], base_ns: int) -> None:
        self._base_ns = base_ns
        members: dict[int, list[tuple[CollectiveRank, Collective]]] = defaultdict(list)
        for collective in collectives:
            for member in collective.by_rank:
                members[member.rank].append((member, collective))
        self._members = {rank: sorted(some, key=lambda one: one[0].start_ns) for rank, some in members.items()}
        self._starts = {rank: [member.start_ns for member, _ in some] for rank, some in self._members.items()}
        self._spells = sorted(map(_spell, collectives), key=lambda spell: spell.start_ns)
        self._begins = [spell.start_ns for spell in self._spells]
        self._longest_ns = max((spell.end_ns - spell.start_ns for spell in self._spells), default=0)

    def at(self, rank: int, at_ns: int) -> dict[str, Any] | None:
        """The collective that ``rank`` was in at a moment, with every rank's part; the latest begun of several."""
        when = at_ns + self._base_ns
        last = bisect_right(self._starts.get(rank, []), when)
        for member, collective in reversed(self._members.get(rank, [])[max(0, last - MOST_OPEN) : last]):
            if when < member.end_ns:
                return self.describe(collective)
        return None

    def between(self, low_ns: int, high_ns: int, least_wait_ns: int, most: int) -> list[dict[str, Any]]:
        """Collectives that touch a range and in which a rank waited at least so long; at most the ``most`` longest."""
        low, high = low_ns + self._base_ns, high_ns + self._base_ns
        first, last = bisect_right(self._begins, low - self._longest_ns - 1), bisect_right(self._begins, high)
        inside = [s for s in self._spells[first:last] if s.end_ns >= low and s.longest_wait_ns >= max(least_wait_ns, 1)]
        inside.sort(key=lambda spell: -spell.longest_wait_ns)
        return [self.describe(spell.collective) for spell in inside[:most]]

    def describe(self, collective: Collective) -> dict[str, Any]:
        """A collective as the page draws it."""
        members = []
        for member in collective.by_rank:
            part = asdict(member)
            part["start"] = part.pop("start_ns") - self._base_ns
            part["end"] = part.pop("end_ns") - self._base_ns
            members.append(part)
        last = max(collective.by_rank, key=lambda member: member.start_ns).rank
        about = {key: getattr(collective, key) for key in ("group", "kind", "sequence", "step", "layer", "phase")}
        return {**about, "last_rank": last, "members": members}


def _spell(collective: Collective) -> _Spell:
    return _Spell(
        min(member.start_ns for member in collective.by_rank),
        max(member.end_ns for member in collective.by_rank),
        max(member.arrival_wait_ns for member in collective.by_rank),
        collective,
    )
