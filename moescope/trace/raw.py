"""The complete events of a file as they stand in it: before base time, categories, kinds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

Codes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Coded:
    """A column of few different texts."""

    words: list[str | None]
    """The different texts; the first is None, and stands for none."""
    places: npt.NDArray[np.uint32]
    """For each row its text's place among ``words``."""

    def series(self) -> pl.Series:
        """The column, categorical."""
        return pl.Series(self.words, dtype=pl.String).cast(pl.Categorical).gather(pl.Series(self.places))

    def each(self, code: Callable[[str], int], default: int, rows: npt.NDArray[np.intp] | None = None) -> Codes:
        """``code`` of each text (of ``rows``), called once for each different one; ``default`` where there is none."""
        places = self.places if rows is None else self.places.take(rows)
        table = np.full(len(self.words), default, dtype=np.uint8)
        for place in self.present(places):
            table[place] = code(self.words[place])  # type: ignore[arg-type]  # only the first is None
        codes: Codes = table.take(places)
        return codes

    def present(self, places: npt.NDArray[np.uint32]) -> list[int]:
        """The different ``places``, without that of none."""
        is_present = np.zeros(len(self.words), dtype=bool)
        is_present[places] = True
        is_present[0] = False
        found: list[int] = np.flatnonzero(is_present).tolist()
        return found


@dataclass(slots=True)
class RawEvents:
    """Complete events by time and then as in the file; times relative to the file's base."""

    index: npt.NDArray[np.uint32]
    """Place in the list of events, of any phase."""
    words: dict[str, Coded]
    """``recorded`` (the category), ``name``, ``input_dims``, ``input_types``, ``concrete_inputs``."""
    numbers: dict[str, IntArray]
    """``ts_ns``, ``dur_ns``, ``pid``, ``tid``, ``device``, ``stream``, ``correlation``, ``external_id``, ``bytes``; at
    most ``NO_NUMBER`` where there is none."""

    @property
    def height(self) -> int:
        """How many events."""
        return len(self.index)
