"""Robust fits of a line."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

HUBER_K = 1.345
"""Tuning constant of 95 % efficiency at the normal distribution (Huber, 1981)."""

MAD_TO_SIGMA = 1.4826


@dataclass(frozen=True, slots=True)
class Line:
    """y = intercept + slope * x."""

    intercept: float
    slope: float


def mad(values: FloatArray) -> float:
    """Median absolute deviation from the median."""
    return float(np.median(np.abs(values - np.median(values)))) if len(values) else 0.0


def huber_line(x: FloatArray, y: FloatArray, num_rounds: int = 30) -> Line:
    """Line by iteratively reweighted least squares with Huber's weights. ``x``, ``y``: [n], n >= 2."""
    centre, scale_x = float(np.mean(x)), float(np.ptp(x)) or 1.0
    design = np.column_stack((np.ones_like(x), (x - centre) / scale_x))
    weight = np.ones_like(y)
    coefficients = np.array([np.median(y), 0.0])
    for _ in range(num_rounds):
        root = np.sqrt(weight)
        updated = np.linalg.lstsq(design * root[:, None], y * root, rcond=None)[0]
        residual = y - design @ updated
        scale = MAD_TO_SIGMA * mad(residual)
        settled = np.allclose(updated, coefficients, rtol=1e-12, atol=1e-9)
        coefficients = updated
        if scale == 0 or settled:
            break
        weight = np.minimum(1.0, HUBER_K * scale / np.maximum(np.abs(residual), 1e-300))
    slope = coefficients[1] / scale_x
    return Line(float(coefficients[0] - slope * centre), float(slope))


def lad_line(x: FloatArray, y: FloatArray, quantile: float = 0.5, num_rounds: int = 60) -> Line:
    """Line of least absolute deviations, or of another quantile of y given x, by reweighting.

    ``x``, ``y``: [n], n >= 2. A quantile of 0.9 leaves nine tenths of the points below the line.
    """
    centre, scale_x = float(np.mean(x)), float(np.ptp(x)) or 1.0
    design = np.column_stack((np.ones_like(x), (x - centre) / scale_x))
    floor = max(1e-9, 1e-6 * float(np.ptp(y)))
    coefficients = np.linalg.lstsq(design, y, rcond=None)[0]
    for _ in range(num_rounds):
        residual = y - design @ coefficients
        weight = np.where(residual > 0, quantile, 1 - quantile) / np.maximum(np.abs(residual), floor)
        root = np.sqrt(weight)
        updated = np.linalg.lstsq(design * root[:, None], y * root, rcond=None)[0]
        if np.allclose(updated, coefficients, rtol=1e-9):
            break
        coefficients = updated
    slope = coefficients[1] / scale_x
    return Line(float(coefficients[0] - slope * centre), float(slope))
