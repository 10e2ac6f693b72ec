"""Frames held to a schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl


def conform(frame: pl.DataFrame, schema: Mapping[str, Any]) -> pl.DataFrame:
    """The schema's columns in its order, cast to its types."""
    return frame.select([pl.col(name).cast(dtype) for name, dtype in schema.items()])
