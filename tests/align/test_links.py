"""Slow links found from who leaves an all-to-all when."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import pytest
from tiny_rows import exchange, table

from moescope.align.exchanges import exchanges, shared_port
from moescope.align.links import SlowLink, data_sheet, find_slow_links
from moescope.align.waits import with_waits

RATE = 0.05
"""Bytes per ns of usual ports."""
EIGHT = range(8)


def rows_of(
    speed: Sequence[float], hosts: Sequence[str], number: int = 12, *, seed: int = 0, first_rank: int = 0
) -> pl.DataFrame:
    """Exchanges of ranks that arrive together; each leaves when the fullest port of its transfers is done."""
    draw = np.random.default_rng(seed)
    found = []
    for index in range(number):
        sizes = draw.integers(900, 1_100, (len(speed), len(speed)))
        begin = 10_000_000 * index
        starts = {first_rank + rank: begin for rank in range(len(speed))}
        rows = table(exchange(starts, begin + 1, sizes.tolist()))
        rows = rows.with_columns(instance=pl.lit(1_000 * first_rank + index, pl.Int64), tier=pl.lit(tier_of(hosts)))
        part = next(iter(exchanges(rows, dict(zip(starts, hosts, strict=True)))))
        lasts = part.paced_bytes(np.array(speed))[0] / RATE * (1 + 1e-4 * draw.standard_normal(len(speed)))
        ends = pl.Series(begin + np.rint(lasts).astype(np.int64))
        found.append(rows.sort("rank").with_columns(end_ns=ends))
    return pl.concat(found)


def tier_of(hosts: Sequence[str]) -> str:
    return "across hosts" if len(set(hosts)) > 1 else "within host"


def found(
    rows: pl.DataFrame, hosts: Sequence[str], usual: dict[str, tuple[float, str]] | None = None
) -> tuple[SlowLink, ...]:
    ends = rows.with_columns(
        after_ns=pl.col("end_ns") - pl.col("start_ns").max().over("instance"), is_tiny=pl.lit(value=False)
    )
    return find_slow_links(ends, dict(enumerate(hosts)), {}, usual or {})


def test_transfers_that_share_a_port_end_in_the_order_of_their_sizes() -> None:
    """10 bytes end when 10 of each of the four have moved, 20 when 10 + 3 x 20 have, and the largest at the end."""
    assert shared_port(np.array([30.0, 10.0, 0.0, 20.0, 30.0])).tolist() == [90.0, 40.0, 0.0, 70.0, 90.0]


TWO_HOSTS = ["a"] * 4 + ["b"] * 4


def test_ranks_that_do_not_use_a_slow_card_tell_how_slow_it_is() -> None:
    (link,) = found(rows_of([1, 1, 1, 1, 1, 0.4, 1, 1], TWO_HOSTS), TWO_HOSTS)
    assert link.ranks == (5,)
    assert link.factor == pytest.approx(0.4, rel=0.01)
    assert link.rate_bytes_per_ns == pytest.approx(0.4 * RATE, rel=0.01)
    assert link.compared_with == "ranks that do not use it"


def test_links_of_equal_speed_are_not_accused() -> None:
    assert found(rows_of([1.0] * 8, TWO_HOSTS), TWO_HOSTS) == ()
    assert found(rows_of([1.0] * 8, ["a"] * 8), ["a"] * 8) == ()


def test_all_links_slow_alike_are_no_slow_link_of_one_rank() -> None:
    assert found(rows_of([0.3] * 8, TWO_HOSTS), TWO_HOSTS) == ()


def test_where_all_use_the_slow_link_the_usual_speed_comes_from_outside() -> None:
    """With every pair through the same kind of port only usual speed x factor is in the traces."""
    rows = rows_of([1, 1, 0.4, 1, 1, 1, 1, 1], ["a"] * 8)
    (link,) = found(rows, ["a"] * 8, {"within host": (RATE, "data sheet")})
    assert (link.ranks, link.compared_with) == ((2,), "data sheet")
    assert link.factor == pytest.approx(0.4, rel=0.01)
    twice = found(rows, ["a"] * 8, {"within host": (2 * RATE, "baseline")})
    assert twice[0].factor == pytest.approx(0.2, rel=0.01)
    assert found(rows, ["a"] * 8) == ()  # the ends alone allow links that are hardly slower


def test_groups_beside_it_tell_the_usual_speed_before_a_data_sheet_does() -> None:
    hosts = ["a"] * 16
    slow = rows_of([1, 1, 0.4, 1, 1, 1, 1, 1], hosts[:8])
    usual = rows_of([1.0] * 8, hosts[:8], seed=1, first_rank=8)
    (link,) = found(pl.concat([slow, usual]), hosts, {"within host": (9.0, "data sheet")})
    assert (link.ranks, link.compared_with) == ((2,), "groups beside it")
    assert link.factor == pytest.approx(0.4, rel=0.01)


def test_a_slow_host_is_told_from_a_slow_rank() -> None:
    hosts = ["a"] * 3 + ["b"] * 3 + ["c"] * 3
    rows = rows_of([1, 1, 1, 0.5, 0.5, 0.5, 1, 1, 1], hosts)
    (link,) = found(rows, hosts, {"across hosts": (RATE, "baseline")})
    assert link.ranks == (3, 4, 5)
    assert link.factor == pytest.approx(0.5, rel=0.01)


def test_few_exchanges_and_two_ranks_tell_nothing() -> None:
    assert found(rows_of([1, 1, 1, 1, 1, 0.4, 1, 1], TWO_HOSTS, number=3), TWO_HOSTS) == ()
    assert found(rows_of([1, 0.3], ["a", "b"]), ["a", "b"]) == ()  # both ranks wait for the same transfers


def test_undisturbed_durations_know_the_slow_link() -> None:
    """All arrived together, so no wait is removable, and what equal links would take is known beside."""
    rows = rows_of([1, 1, 1, 1, 1, 0.4, 1, 1], TWO_HOSTS)
    got = with_waits(rows.drop("tier"), dict(enumerate(TWO_HOSTS)))
    assert [link.ranks for link in got.slow_links] == [(5,)]
    duration = got.rows["end_ns"] - got.rows["start_ns"]
    assert got.rows["undisturbed_ns"].to_numpy() == pytest.approx(duration.to_numpy(), rel=2e-3)
    held = got.rows.filter(pl.col("rank") < 4)
    assert (held["even_links_ns"] < 0.6 * held["undisturbed_ns"]).all()


def test_the_data_sheet_knows_devices_by_name() -> None:
    assert data_sheet("NVIDIA H100 80GB HBM3") == 370.0
    assert data_sheet("CPU") is None
