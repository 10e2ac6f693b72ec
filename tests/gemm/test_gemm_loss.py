"""References and the split of the loss, against values worked out by hand; identities by hypothesis."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_products import call, table

from moescope.attribution.gemm.curve import curves
from moescope.attribution.gemm.loss import LOSS_PARTS, tile_fill, wave_fill, with_loss
from moescope.attribution.gemm.reference import Reference, peak_of, references
from moescope.attribution.gemm.rows import local_rows

REFERENCE = Reference("bfloat16", 1000.0, "baseline", 0, None, 2.0)


def parts(frame: pl.DataFrame) -> dict[str, int]:
    return {part: frame[f"{part}_ns"][0] for part in LOSS_PARTS}


def test_loss_splits_into_tile_wave_launch_and_residual() -> None:
    """64 x 256 x 512: 16,777 ns at 1,000 FLOPs per ns; half of each of 2 tiles is padding; 2 of 4 processors idle."""
    lost = with_loss(table(call(gap_ns=1_000)), {"bfloat16": REFERENCE}, 4)
    assert lost["loss_ns"][0] == 51_000 - 16_777
    assert parts(lost) == {"memory": 0, "tile": 16_777, "wave": 33_554, "launch": 1_000, "residual": -17_108}


def test_memory_comes_first_and_hides_what_it_covers() -> None:
    lost = with_loss(table(call(bytes=60_000)), {"bfloat16": REFERENCE}, None)
    assert parts(lost) == {"memory": 13_223, "tile": 3_554, "wave": 0, "launch": 0, "residual": 50_000 - 33_554}


def test_tiles_of_a_grouped_product_follow_its_rows() -> None:
    grouped = call(kind="grouped", divided="m", m=256, groups=4, rows=64.0, n=128)
    even = table(grouped)
    assert tile_fill(even)[0].tolist() == [4.0]
    uneven = even.with_columns(group_rows=pl.Series([[1, 1, 1, 253]]))
    assert tile_fill(uneven)[0].tolist() == [5.0]
    unknown = even.with_columns(group_rows=pl.Series([None], dtype=pl.List(pl.Int64)))
    assert tile_fill(unknown)[0].tolist() == [4.0]


def test_a_tile_may_lie_either_way() -> None:
    assert tile_fill(table(call(m=64, n=256, tile_m=256, tile_n=64)))[0].tolist() == [1.0]


def test_waves_fill_multiprocessors() -> None:
    assert wave_fill(np.array([132.0, 133.0, 66.0, 0.0]), 132).tolist() == [1.0, 133 / 264, 0.5, 1.0]
    assert wave_fill(np.array([5.0]), None).tolist() == [1.0]


@given(
    st.tuples(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 5000)),
    st.tuples(st.integers(1, 10**8), st.integers(0, 10**6), st.integers(1, 10**9)),
    st.one_of(st.none(), st.integers(1, 200)),
)
def test_parts_sum_to_the_loss(shape: tuple[int, int, int], spent: tuple[int, int, int], sms: int | None) -> None:
    (m, n, k), (time, gap, moved) = shape, spent
    lost = with_loss(table(call(m=m, n=n, k=k, kernel_ns=time, gap_ns=gap, bytes=moved)), {"bfloat16": REFERENCE}, sms)
    split = parts(lost)
    assert sum(split.values()) == lost["loss_ns"][0]
    assert min(split[part] for part in LOSS_PARTS[:-1]) >= 0


def large(rate: float) -> dict[str, Any]:
    row = call(m=2048, n=1024, k=1024)
    return row | {"kernel_ns": round(row["flops"] / rate)}


def test_reference_prefers_a_baseline_then_large_products_then_the_peak_then_the_best() -> None:
    many = table(*(large(400_000.0 + 1000 * index) for index in range(21)))
    few = table(large(400_000.0), call())
    assert references(many, "H100", {"bfloat16": 700_000.0})["bfloat16"].source == "baseline"
    found = references(many, "H100")["bfloat16"]
    assert (found.source, found.num_calls) == ("large products in the trace", 21)
    assert found.flops_per_ns == pytest.approx(419_000, rel=1e-4)
    assert found.memory_bytes_per_ns == 3350.0
    assert references(few, "NVIDIA H100 80GB HBM3")["bfloat16"] == Reference(
        "bfloat16", 989_500.0, "device peak", 0, 989_500.0, 3350.0
    )
    best = references(few, "a device of tomorrow")["bfloat16"]
    assert (best.source, best.peak_flops_per_ns) == ("best rate in the trace", None)
    assert best.flops_per_ns == pytest.approx(400_000, rel=1e-4)


def test_rates_above_the_peak_are_not_believed() -> None:
    many = table(*(large(2_000_000.0) for _ in range(8)))
    assert references(many, "H100")["bfloat16"].flops_per_ns == 989_500.0


def test_devices_are_told_apart_by_name() -> None:
    names = (
        "NVIDIA H100 80GB HBM3",
        "NVIDIA H100 PCIe",
        "NVIDIA H200",
        "NVIDIA A100-SXM4-80GB",
        "NVIDIA B200",
        "GB200",
    )
    peaks = [peak_of(name) for name in (*names, "AMD Instinct MI300X")]
    assert [p.flops_per_ns["bfloat16"] / 1e3 if p else None for p in peaks] == [
        989.5, 756.0, 989.5, 312.0, 2250.0, 2500.0, 1307.4,
    ]  # fmt: skip
    assert peak_of("CPU") is None


def test_a_curve_has_the_fixed_time_and_the_time_per_row() -> None:
    rows = [call(m=m, kernel_ns=5_000 + 30 * m) for m in (16, 32, 64, 128, 256) for _ in range(3)]
    outlier = call(m=64, kernel_ns=900_000)
    (curve,) = curves(table(*rows, outlier))
    assert curve.fixed_ns == pytest.approx(5_000, rel=0.01)
    assert curve.ns_per_row == pytest.approx(30, rel=0.01)
    assert curve.points[0] == (16.0, 5480.0, 3)
    (flat,) = curves(table(call(), call()))
    assert flat.ns_per_row is None


def test_rows_of_local_experts_are_summed_over_the_sources_of_a_group() -> None:
    load = pl.DataFrame(
        {"rank": [0, 1, 2, 3], "step": [5] * 4, "microbatch": [0] * 4, "layer": [1] * 4}
        | {"counts": [[1, 2, 3, 4], [10, 20, 30, 40], [5, 5, 5, 5], [0, 0, 0, 1]]}
    )
    rows = local_rows(load, [[0, 1], [2, 3]], None).sort("rank")
    assert rows.select("rank", "group_rows").rows() == [(0, [11, 22]), (1, [33, 44]), (2, [5, 5]), (3, [5, 6])]
    strided = local_rows(load, [[0, 1], [2, 3]], [0, 1, 0, 1]).sort("rank")
    assert strided["group_rows"].to_list()[:2] == [[11, 33], [22, 44]]
    assert local_rows(load, [[0, 1], [2, 3]], None, steps=[6]).is_empty()
    assert local_rows(pl.DataFrame(), [[0]], None).is_empty()
