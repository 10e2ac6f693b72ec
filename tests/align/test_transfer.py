"""Latency and bandwidth from the run's own calm exchanges, and the bytes they are measured by."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from tiny_rows import ROW_BYTES, collective, exchange, table

from moescope.align.transfer import fit_transfer
from moescope.align.volume import with_volume

SCHEMA = {"tier": pl.String, "bottleneck_bytes": pl.Float64, "span_ns": pl.Int64, "skew_share": pl.Float64}
ALPHA_NS, BYTES_PER_NS = 12_000.0, 50.0


def measured(sizes: np.ndarray, skew: float = 0.0, late_ns: float = 0.0, tier: str = "within host") -> pl.DataFrame:
    """Exchanges that take alpha + bytes / B, and ``late_ns`` more."""
    span = np.rint(ALPHA_NS + sizes / BYTES_PER_NS + late_ns).astype(np.int64)
    columns = {"tier": [tier] * len(sizes), "bottleneck_bytes": sizes, "span_ns": span}
    return pl.DataFrame(columns | {"skew_share": [skew] * len(sizes)}, SCHEMA)


SIZES = np.array([1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 9.0, 10.0]) * 1e6


def test_latency_and_bandwidth_are_recovered_exactly_from_calm_exchanges() -> None:
    model = fit_transfer(measured(SIZES))["within host"]
    assert model.alpha_ns == pytest.approx(ALPHA_NS, rel=1e-3)
    assert model.bytes_per_ns == pytest.approx(BYTES_PER_NS, rel=1e-3)
    assert model.num_instances == len(SIZES)
    assert model.duration_ns(np.array([5e6])) == pytest.approx([ALPHA_NS + 1e5], rel=1e-3)


def test_skewed_exchanges_are_left_out_and_a_few_slow_ones_do_no_harm() -> None:
    skewed = measured(SIZES, skew=0.5, late_ns=-40_000.0)  # overlap makes their spans too short
    slow = measured(SIZES[:2], late_ns=300_000.0)
    model = fit_transfer(pl.concat([measured(SIZES), skewed, slow]))["within host"]
    assert model.alpha_ns == pytest.approx(ALPHA_NS, rel=0.02)
    assert model.bytes_per_ns == pytest.approx(BYTES_PER_NS, rel=0.02)
    assert model.method == "undisturbed instances"


def test_jitter_of_five_percent_moves_the_bandwidth_by_less() -> None:
    draw = np.random.default_rng(2)
    sizes = draw.uniform(1e6, 1e7, 200)
    model = fit_transfer(measured(sizes, late_ns=draw.normal(0, 5_000, 200)))["within host"]
    assert model.bytes_per_ns == pytest.approx(BYTES_PER_NS, rel=0.02)
    assert model.alpha_ns == pytest.approx(ALPHA_NS, abs=2_500)


def test_where_all_are_skewed_the_upper_envelope_is_taken() -> None:
    sizes = np.repeat(SIZES, 10)
    overlap = np.tile(np.linspace(0, -60_000, 10), len(SIZES))
    model = fit_transfer(measured(sizes, skew=0.5, late_ns=overlap))["within host"]
    assert model.method == "upper envelope of disturbed instances"
    assert ALPHA_NS - 15_000 <= model.alpha_ns <= ALPHA_NS + 1_000
    assert model.bytes_per_ns == pytest.approx(BYTES_PER_NS, rel=0.05)


def test_tiers_have_their_own_model_and_few_exchanges_have_none() -> None:
    models = fit_transfer(pl.concat([measured(SIZES), measured(SIZES[:4], tier="across hosts")]))
    assert set(models) == {"within host"}
    assert fit_transfer(measured(SIZES).head(0)) == {}
    unknown = measured(SIZES).with_columns(bottleneck_bytes=pl.lit(None, pl.Float64))
    assert fit_transfer(unknown) == {}


def test_one_size_gives_a_rate_without_a_latency() -> None:
    model = fit_transfer(measured(np.full(8, 5e6)))["within host"]
    assert model.alpha_ns == 0.0
    assert model.duration_ns(np.array([5e6])) == pytest.approx([ALPHA_NS + 1e5], rel=1e-6)


ROWS = [[5, 1, 2], [3, 4, 0], [0, 6, 1]]


def volume(hosts: dict[int, str], tier: str) -> pl.DataFrame:
    rows = table(exchange({0: 0, 1: 0, 2: 0}, 9, ROWS)).with_columns(instance=pl.lit(0), tier=pl.lit(tier))
    return with_volume(rows, hosts).sort("rank")


def test_bytes_to_and_from_others_within_a_host() -> None:
    """Sent to others 3, 3, 6 rows; received from others 3, 7, 2."""
    got = volume({0: "a", 1: "a", 2: "a"}, "within host")
    assert got["remote_bytes"].to_list() == [3 * ROW_BYTES, 7 * ROW_BYTES, 6 * ROW_BYTES]
    assert got["bottleneck_bytes"].to_list() == [7 * ROW_BYTES] * 3
    assert got["bottleneck_rank"].to_list() == [1] * 3
    assert got["mean_bytes"].to_list() == pytest.approx([16 / 3 * ROW_BYTES] * 3)


def test_bytes_to_and_from_other_hosts_when_a_group_spans_them() -> None:
    """Rank 2 is alone on its host: it sends 6 rows to rank 1 and receives 2 from rank 0."""
    got = volume({0: "a", 1: "a", 2: "b"}, "across hosts")
    assert got["remote_bytes"].to_list() == [2 * ROW_BYTES, 6 * ROW_BYTES, 6 * ROW_BYTES]


def test_without_splits_every_peer_has_an_equal_share() -> None:
    rows = [collective(rank, 0, 9, members=range(4), size=400) for rank in range(4)]
    frame = table(rows).with_columns(instance=pl.lit(0), tier=pl.lit("within host"))
    assert with_volume(frame, dict.fromkeys(range(4), "a"))["remote_bytes"].to_list() == [300.0] * 4


def test_an_exchange_of_unknown_size_has_no_volume() -> None:
    rows = [collective(0, 0, 9, size=8), collective(1, 0, 9)]
    frame = table(rows).with_columns(instance=pl.lit(0), tier=pl.lit("within host"))
    got = with_volume(frame, {0: "a", 1: "a"})
    assert got["bottleneck_bytes"].to_list() == [None, None]
    assert got["remote_bytes"].to_list() == [4.0, None]
