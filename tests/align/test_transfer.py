"""Latency and bandwidth from the run's own calm exchanges, and the bytes they are measured by."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from tiny_rows import ROW_BYTES, collective, exchange, table

from moescope.align.transfer import TransferModel, calm, fit_transfer
from moescope.align.volume import with_volume

ALPHA_NS, BYTES_PER_NS = 12_000.0, 50.0


def measured(
    sizes: np.ndarray, skew: float = 0.0, late_ns: float | np.ndarray = 0.0, tier: str = "within host", first: int = 0
) -> pl.DataFrame:
    """Exchanges, each seen by one rank, that take alpha + bytes / B, and ``late_ns`` more."""
    after = np.rint(ALPHA_NS + sizes / BYTES_PER_NS + late_ns).astype(np.int64)
    return pl.DataFrame(
        {
            "instance": np.arange(first, first + len(sizes)),
            "tier": [tier] * len(sizes),
            "paced_bytes": sizes,
            "after_ns": after,
            "skew_share": [skew] * len(sizes),
        }
    )


def fitted(*parts: pl.DataFrame) -> dict[str, TransferModel]:
    return fit_transfer(calm(pl.concat(parts)))


SIZES = np.array([1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 9.0, 10.0]) * 1e6


def test_latency_and_bandwidth_are_recovered_exactly_from_calm_exchanges() -> None:
    model = fitted(measured(SIZES))["within host"]
    assert model.alpha_ns == pytest.approx(ALPHA_NS, rel=1e-3)
    assert model.bytes_per_ns == pytest.approx(BYTES_PER_NS, rel=1e-3)
    assert model.num_instances == len(SIZES)
    assert model.duration_ns(np.array([5e6])) == pytest.approx([ALPHA_NS + 1e5], rel=1e-3)


def test_skewed_exchanges_are_left_out_and_a_few_slow_ones_do_no_harm() -> None:
    skewed = measured(SIZES, skew=0.5, late_ns=-40_000.0, first=50)  # overlap makes their spans too short
    slow = measured(SIZES[:2], late_ns=300_000.0, first=80)
    model = fitted(measured(SIZES), skewed, slow)["within host"]
    assert model.alpha_ns == pytest.approx(ALPHA_NS, rel=0.02)
    assert model.bytes_per_ns == pytest.approx(BYTES_PER_NS, rel=0.02)
    assert model.method == "undisturbed instances"


def test_jitter_of_five_percent_moves_the_bandwidth_by_less() -> None:
    draw = np.random.default_rng(2)
    sizes = draw.uniform(1e6, 1e7, 200)
    model = fitted(measured(sizes, late_ns=draw.normal(0, 5_000, 200)))["within host"]
    assert model.bytes_per_ns == pytest.approx(BYTES_PER_NS, rel=0.02)
    assert model.alpha_ns == pytest.approx(ALPHA_NS, abs=2_500)


def test_where_all_are_skewed_the_upper_envelope_is_taken() -> None:
    sizes = np.repeat(SIZES, 10)
    overlap = np.tile(np.linspace(0, -60_000, 10), len(SIZES))
    model = fitted(measured(sizes, skew=0.5, late_ns=overlap))["within host"]
    assert model.method == "upper envelope of disturbed instances"
    assert ALPHA_NS - 15_000 <= model.alpha_ns <= ALPHA_NS + 1_000
    assert model.bytes_per_ns == pytest.approx(BYTES_PER_NS, rel=0.05)


def test_tiers_have_their_own_model_and_few_exchanges_have_none() -> None:
    models = fitted(measured(SIZES), measured(SIZES[:4], tier="across hosts", first=50))
    assert set(models) == {"within host"}
    assert fitted(measured(SIZES).head(0)) == {}
    unknown = measured(SIZES).with_columns(paced_bytes=pl.lit(None, pl.Float64))
    assert fitted(unknown) == {}


def test_one_size_gives_a_rate_without_a_latency() -> None:
    model = fitted(measured(np.full(8, 5e6)))["within host"]
    assert model.alpha_ns == 0.0
    assert model.duration_ns(np.array([5e6])) == pytest.approx([ALPHA_NS + 1e5], rel=1e-6)


def test_tiny_exchanges_tell_the_latency_of_one_size_whatever_their_skew() -> None:
    model = fitted(measured(np.full(8, 5e6)), measured(np.full(4, 400.0), skew=9.0, first=20))["within host"]
    assert model.alpha_ns == pytest.approx(ALPHA_NS, rel=1e-3)
    assert model.bytes_per_ns == pytest.approx(BYTES_PER_NS, rel=1e-3)


def test_the_calmest_exchanges_that_suffice_are_taken() -> None:
    """Ten without skew are enough; a hundred of 10 % skew, all 8 us too short, are not asked."""
    sizes = np.linspace(1e6, 1e7, 100)
    model = fitted(measured(sizes[::10]), measured(sizes, skew=0.1, late_ns=-8_000.0, first=50))["within host"]
    assert model.alpha_ns == pytest.approx(ALPHA_NS, rel=1e-3)
    assert model.num_instances == 10


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
    assert got["mean_bytes"].to_list() == pytest.approx([12 / 3 * ROW_BYTES] * 3)


def test_bytes_to_and_from_other_hosts_when_a_group_spans_them() -> None:
    """Rank 2 is alone on its host: it sends 6 rows to rank 1 and receives 2 from rank 0."""
    got = volume({0: "a", 1: "a", 2: "b"}, "across hosts")
    assert got["remote_bytes"].to_list() == [2 * ROW_BYTES, 6 * ROW_BYTES, 6 * ROW_BYTES]


def test_without_splits_every_peer_has_an_equal_share() -> None:
    rows = [collective(rank, 0, 9, members=range(4), size=400) for rank in range(4)]
    frame = table(rows).with_columns(instance=pl.lit(0), tier=pl.lit("within host"))
    assert with_volume(frame, dict.fromkeys(range(4), "a"))["remote_bytes"].to_list() == [300.0] * 4


def test_a_rank_leaves_with_the_fullest_port_of_its_own_transfers() -> None:
    """Rank 1's receiving port has moved 7 rows at the end. Rank 2's part of them (6) ends with it; rank 0's row ends
    when as much of both has moved, after 2 rows. Rank 0 also waits for its two rows to rank 2, which ends alone."""
    got = volume({0: "a", 1: "a", 2: "a"}, "within host")
    assert got["even_bytes"].to_list() == [3 * ROW_BYTES, 7 * ROW_BYTES, 7 * ROW_BYTES]
    assert got["paced_bytes"].to_list() == got["even_bytes"].to_list()


def test_an_exchange_of_unknown_size_has_no_volume() -> None:
    rows = [collective(0, 0, 9, size=8), collective(1, 0, 9)]
    frame = table(rows).with_columns(instance=pl.lit(0), tier=pl.lit("within host"))
    got = with_volume(frame, {0: "a", 1: "a"})
    assert got["bottleneck_bytes"].to_list() == [None, None]
    assert got["remote_bytes"].to_list() == [None, None]


def test_what_a_rank_without_a_trace_exchanged_is_known_from_its_peers() -> None:
    """Rank 1 left no trace; its seven incoming rows and its three outgoing ones are in the others' splits."""
    rows = table(exchange({0: 0, 1: 0, 2: 0}, 9, ROWS)).with_columns(instance=pl.lit(0), tier=pl.lit("within host"))
    seen = rows.filter(pl.col("rank") != 1)
    got = with_volume(seen, dict.fromkeys(range(3), "a")).sort("rank")
    assert got["even_bytes"].to_list() == [3 * ROW_BYTES, 7 * ROW_BYTES]


def test_lists_that_were_cut_give_way_to_totals() -> None:
    """Rank 1 receives half of all, and so half of what each of the others sends to others."""
    sizes = {0: (400, 200), 1: (400, 600), 2: (400, 400)}
    rows = [collective(rank, 0, 9, members=range(3), size=0) for rank in sizes]
    rows = [
        row | {"send_bytes": sent, "recv_bytes": received}
        for row, (sent, received) in zip(rows, sizes.values(), strict=True)
    ]
    frame = table(rows).with_columns(instance=pl.lit(0), tier=pl.lit("within host"))
    got = with_volume(frame, dict.fromkeys(range(3), "a"))
    assert got["remote_bytes"].to_list() == pytest.approx([1000 / 3, 400, 800 / 3])
    assert got["bottleneck_rank"].to_list() == [1] * 3
