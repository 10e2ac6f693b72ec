"""Tables as files: Parquet, and CSV that no spreadsheet mistakes for formulas."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from moescope.views.text import printable

FORMULA = r"^\s*[=+\-@\t\r\n]"
"""Text that a spreadsheet runs when a cell opens with it, blanks trimmed (OWASP, *CSV Injection*)."""


def neutral(table: pl.DataFrame) -> pl.DataFrame:
    """Return ``table`` for CSV: lists joined by spaces, and text that opens like a formula behind an apostrophe.

    Names in traces are anybody's text; a cell such as ``=cmd|...`` would run when the file is opened. Control
    characters become visible escapes.
    """
    lists = [name for name, dtype in table.schema.items() if isinstance(dtype, pl.List)]
    joined = table.with_columns(pl.col(name).cast(pl.List(pl.String)).list.join(" ") for name in lists)
    texts = [pl.col(name) for name, dtype in joined.schema.items() if dtype == pl.String]
    inert = joined.with_columns(text.map_elements(_inert, return_dtype=pl.String) for text in texts)
    return inert.with_columns(
        pl.when(text.str.contains(FORMULA)).then(pl.lit("'") + text).otherwise(text).name.keep() for text in texts
    )


def _inert(text: str) -> str:
    return printable(text, keep_breaks=True)


def write_table(table: pl.DataFrame, path: Path) -> None:
    """Write ``table`` as ``.parquet`` or ``.csv``, as the name says."""
    if path.suffix == ".csv":
        neutral(table).write_csv(path)
    else:
        table.write_parquet(path, compression="zstd")
