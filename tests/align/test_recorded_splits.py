"""Splits of large groups from what the hooks recorded."""

from __future__ import annotations

from typing import Any

import polars as pl
from moescope_hooks.schema import COLLECTIVE
from tiny_rows import ROW_BYTES, collective, table

from moescope.align.recorded_splits import with_recorded_splits

PLACE = {"step": 0, "layer": 2, "microbatch": 1, "phase": "dispatch"}
SENT, RECEIVED = [3, 4, 5], [1, 2, 4]


def traced(**rest: Any) -> pl.DataFrame:
    sizes = {"send_bytes": sum(SENT) * ROW_BYTES, "recv_bytes": sum(RECEIVED) * ROW_BYTES}
    row = collective(0, 0, 9, members=range(3)) | PLACE | {"backward": None} | sizes | rest
    return table([row])


def recorded(**rest: Any) -> pl.DataFrame:
    lists = {"send_bytes": [n * ROW_BYTES for n in SENT], "recv_bytes": [n * ROW_BYTES for n in RECEIVED]}
    row = {"rank": 0, "group": "1", "seq": 0, "backward": False, "arrival_ns": 0, "end_ns": 9} | PLACE | lists | rest
    return pl.DataFrame([row], schema=dict(COLLECTIVE))


def test_cut_splits_are_filled_in_rows() -> None:
    got = with_recorded_splits(traced(), recorded())
    assert got["in_splits"].to_list() == [SENT]
    assert got["out_splits"].to_list() == [RECEIVED]
    assert got.columns == traced().columns
    assert got["backward"].to_list() == [None]


def test_what_the_trace_has_stays_and_what_disagrees_is_left_out() -> None:
    whole = with_recorded_splits(traced(in_splits=[4, 4, 4], out_splits=[7, 0, 0]), recorded())
    assert whole["in_splits"].to_list() == [[4, 4, 4]]
    other = with_recorded_splits(traced(), recorded(send_bytes=[8, 8, 8]))
    assert other["in_splits"].to_list() == [None]
    elsewhere = with_recorded_splits(traced(), recorded(layer=3))
    assert elsewhere["in_splits"].to_list() == [None]
    assert with_recorded_splits(traced(), recorded().head(0))["in_splits"].to_list() == [None]


def test_two_records_of_one_exchange_tell_nothing() -> None:
    assert with_recorded_splits(traced(), pl.concat([recorded(), recorded(seq=5)]))["in_splits"].to_list() == [None]
