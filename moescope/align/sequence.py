"""Alignment of two ranks' collective sequences when one of them lost or gained events."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

GAP = -1.0
"""Score of leaving one collective of either rank unmatched."""

MAX_CELLS = 25_000_000
"""Largest score matrix aligned (rows x columns); longer sequences are refused rather than guessed."""


def align(score: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """For each column the row it is matched with, -1 for none; [num_columns].

    ``score``: [rows, columns], positive where row and column may be the same collective, negative where they
    cannot. Global alignment with linear gaps (Needleman and Wunsch, 1970): matches keep the order of both.
    Ties prefer a match over a gap, so equal sequences map one to one.
    """
    num_rows, num_columns = score.shape
    best = np.empty((num_rows + 1, num_columns + 1))
    best[0] = GAP * np.arange(num_columns + 1)
    gaps = GAP * np.arange(num_columns + 1)
    for row in range(1, num_rows + 1):
        line = np.empty(num_columns + 1)
        line[0] = GAP * row
        line[1:] = np.maximum(best[row - 1, :-1] + score[row - 1], best[row - 1, 1:] + GAP)
        best[row] = np.maximum.accumulate(line - gaps) + gaps
    return _trace_back(best, score)


def _trace_back(best: npt.NDArray[np.float64], score: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    row, column = score.shape
    matched = np.full(column, -1, dtype=np.int64)
    while row and column:
        if np.isclose(best[row, column], best[row - 1, column - 1] + score[row - 1, column - 1]):
            row, column = row - 1, column - 1
            matched[column] = row
        elif np.isclose(best[row, column], best[row - 1, column] + GAP):
            row -= 1
        else:
            column -= 1
    return matched
