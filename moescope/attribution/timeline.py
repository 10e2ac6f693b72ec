"""One rank's step on the common clock: its pieces with communication told apart, and how much of each by any moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import polars as pl

from moescope.align import Alignment
from moescope.align.ranges import IntArray
from moescope.attribution.labels import COMM_PART, COMM_PIECES, COMMUNICATION, PART, Label
from moescope.attribution.profile import RankProfile

FloatArray = npt.NDArray[np.float64]


class Activity(IntEnum):
    """What the delay rule compares between a late rank and a waiting one."""

    TOKEN_WORK = 0
    OTHER_COMPUTE = 1
    MEMORY = 2
    HOST = 3
    TRANSFER = 4
    WAIT = 5
    DEPENDENCY = 6


ACTIVITY = {
    **{label: Activity.OTHER_COMPUTE for label in Label if label <= Label.OTHER},
    Label.COMM_WAIT: Activity.WAIT,
    Label.COPY: Activity.MEMORY,
    Label.ALLOCATOR: Activity.MEMORY,
    Label.HOST_LAUNCH: Activity.HOST,
    Label.SYNC: Activity.HOST,
    Label.OUTSIDE: Activity.HOST,
    Label.GAP: Activity.HOST,
    Label.DEPENDENCY: Activity.DEPENDENCY,
}
"""The activity of every label but communication, whose pieces differ, and token-bound compute."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """``pieces``: ``step, start_ns, end_ns, label, part, activity, layer`` in time order, common clock."""

    rank: int
    on_gpu: bool
    """False on a host-only trace, where the host's threads stand for the device."""
    pieces: pl.DataFrame
    edges_ns: IntArray
    cumulative_ns: FloatArray
    """[len(edges_ns), activities]: time spent on each activity before each edge."""

    def spent_ns(self, start_ns: IntArray, end_ns: IntArray) -> FloatArray:
        """Time on each activity within ``[start_ns, end_ns]``; [n, activities]."""
        return self._before(end_ns) - self._before(start_ns)

    def _before(self, moment_ns: IntArray) -> FloatArray:
        slot = np.clip(np.searchsorted(self.edges_ns, moment_ns, side="right") - 1, 0, len(self.edges_ns) - 2)
        low, high = self.edges_ns[slot], self.edges_ns[slot + 1]
        share = np.clip((moment_ns - low) / np.maximum(high - low, 1), 0.0, 1.0)[:, None]
        before: FloatArray = self.cumulative_ns[slot] * (1 - share) + self.cumulative_ns[slot + 1] * share
        return before


def timelines(profiles: Sequence[RankProfile], alignment: Alignment) -> dict[int, Timeline]:
    """Every rank's timeline on the common clock; a rank's windows follow one another."""
    pieces: dict[int, list[pl.DataFrame]] = {}
    on_gpu = {profile.rank: profile.on_gpu for profile in profiles}
    for profile in profiles:
        mine = alignment.collectives.filter((pl.col("rank") == profile.rank) & (pl.col("window") == profile.window))
        clock = alignment.clock_of(profile.rank)
        cut = _cut_communication(profile, mine)
        cut = cut.with_columns(start_ns=clock.to_common(cut["start_ns"]), end_ns=clock.to_common(cut["end_ns"]))
        pieces.setdefault(profile.rank, []).append(cut)
    return {rank: _timeline(rank, pl.concat(parts), on_gpu=on_gpu[rank]) for rank, parts in pieces.items()}


def _timeline(rank: int, pieces: pl.DataFrame, *, on_gpu: bool) -> Timeline:
    pieces = pieces.sort("start_ns")
    edges, cumulative = _cumulative(pieces)
    return Timeline(rank, on_gpu, pieces, edges, cumulative)


def _cut_communication(profile: RankProfile, collectives: pl.DataFrame) -> pl.DataFrame:
    """Every communication piece cut where its removable wait and its arrival wait end; local clock."""
    segments = profile.segments
    comm = segments["label"].is_in([int(label) for label in COMMUNICATION])
    rest = segments.filter(~comm)
    plain = {int(label): part for label, part in PART.items()}
    activity = {int(label): int(value) for label, value in ACTIVITY.items()}
    rest = rest.with_columns(
        part=pl.col("label").cast(pl.Int64).replace_strict(plain, return_dtype=pl.String),
        activity=pl.when("token_bound")
        .then(int(Activity.TOKEN_WORK))
        .otherwise(pl.col("label").cast(pl.Int64).replace_strict(activity, return_dtype=pl.Int64)),
    )
    waits = collectives.select("removable_wait_ns", "arrival_wait_ns", begun="local_start_ns", event="events")
    waits = waits.explode("event").unique("event")  # several kernels may be one collective
    known = profile.instances.select("event", "start_ns").with_row_index("instance")
    known = known.with_columns(pl.col("instance").cast(pl.Int64)).join(waits, on="event", how="left")
    known = known.select(
        "instance",
        begun=pl.col("begun").fill_null(pl.col("start_ns")),
        removable_wait_ns=pl.col("removable_wait_ns").fill_null(0),
        arrival_wait_ns=pl.col("arrival_wait_ns").fill_null(0),
    )
    cut = segments.filter(comm).join(known, on="instance", how="left", maintain_order="left")
    first = (pl.col("begun") + pl.col("removable_wait_ns")).clip(pl.col("start_ns"), pl.col("end_ns"))
    second = (pl.col("begun") + pl.col("arrival_wait_ns")).clip(pl.col("start_ns"), pl.col("end_ns"))
    cut = cut.with_columns(first=first, second=pl.max_horizontal(first, second))
    bounds = (("start_ns", "first"), ("first", "second"), ("second", "end_ns"))
    prefix = {int(label): part for label, part in COMM_PART.items()}
    pieces = [
        cut.with_columns(
            start_ns=low,
            end_ns=high,
            part=pl.col("label").cast(pl.Int64).replace_strict(prefix, return_dtype=pl.String) + f".{piece}",
            activity=pl.lit(int(Activity.TRANSFER if piece == "transfer" else Activity.WAIT), pl.Int64),
        ).select(rest.columns)
        for piece, (low, high) in zip(COMM_PIECES, bounds, strict=True)
    ]
    whole = pl.concat([rest.with_columns(pl.col("activity").cast(pl.Int64)), *pieces])
    return whole.filter(pl.col("end_ns") > pl.col("start_ns")).sort("start_ns")


def _cumulative(pieces: pl.DataFrame) -> tuple[IntArray, FloatArray]:
    start, end = pieces["start_ns"].to_numpy(), pieces["end_ns"].to_numpy()
    edges = np.unique(np.concatenate((start, end, np.zeros(0 if len(start) else 2, dtype=np.int64))))
    if len(edges) < 2:
        edges = np.array([0, 1], dtype=np.int64)
    spent = np.zeros((len(edges), len(Activity)))
    at = np.searchsorted(edges, end)
    np.add.at(spent, (at, pieces["activity"].to_numpy()), (end - start).astype(np.float64))
    return edges, np.cumsum(spent, axis=0)
