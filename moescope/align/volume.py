"""Bytes that each rank exchanges over the links that set the pace of an all-to-all (``exchanges``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from moescope.align.exchanges import Exchanges, FloatArray, exchanges
from moescope.align.links import SlowLink, speeds


def with_volume(rows: pl.DataFrame, host_of_rank: Mapping[int, str], slow: Sequence[SlowLink] = ()) -> pl.DataFrame:
    """Adds what every all-to-all moves over the links that set its pace; null where unknown and for other kinds.

    Per rank ``remote_bytes`` (the larger of sent and received), ``even_bytes`` (what ports shared fairly have moved
    when the rank's last transfer ends) and ``paced_bytes`` (the same with ``slow`` links: as many bytes as links of
    the usual speed would have moved by then); per instance ``bottleneck_bytes`` (the most of any rank),
    ``mean_bytes`` (what each would send and receive if the same total were even), ``bottleneck_rank`` and
    ``bottleneck_receives`` (it receives more than it sends).
    ``rows``: matched collectives with ``tier``.
    """
    columns = {name: np.full(len(rows), np.nan) for name in ("outgoing", "incoming", "even_bytes", "paced_bytes")}
    for part in exchanges(rows, host_of_rank):
        for name, values in _of_rows(part, slow).items():
            columns[name][part.row[part.row >= 0]] = values[part.row >= 0]
    outgoing, incoming = columns.pop("outgoing"), columns.pop("incoming")
    known = rows.with_columns(
        remote_bytes=pl.Series(np.fmax(outgoing, incoming)).fill_nan(None),
        receives_more=pl.Series(incoming > outgoing),
        sent=pl.Series(outgoing).fill_nan(None),
        **{name: pl.Series(values).fill_nan(None) for name, values in columns.items()},
    )
    complete = pl.col("remote_bytes").is_not_null().all().over("instance")
    return known.with_columns(
        bottleneck_bytes=pl.when(complete).then(pl.col("remote_bytes").max().over("instance")),
        mean_bytes=pl.when(complete).then(pl.col("sent").mean().over("instance")),
        bottleneck_rank=pl.when(complete).then(pl.col("rank").sort_by("remote_bytes").last().over("instance")),
        bottleneck_receives=pl.when(complete).then(
            pl.col("receives_more").sort_by("remote_bytes").last().over("instance")
        ),
    ).drop("receives_more", "sent")


def _of_rows(part: Exchanges, slow: Sequence[SlowLink]) -> dict[str, FloatArray]:
    speed = speeds(part, slow)
    even = part.paced_bytes()
    return {
        "outgoing": part.sent(),
        "incoming": part.received(),
        "even_bytes": even,
        "paced_bytes": even if (speed == 1).all() else part.paced_bytes(speed),
    }
