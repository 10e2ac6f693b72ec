"""All ranks together: buckets, layers, utilisation, and what one grouped call would save."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl
import pytest
from tiny_products import call, table

from moescope.attribution.gemm.ranks import Gemms, gemms
from moescope.attribution.gemm.rows import SCHEMA

NO_ROWS = pl.DataFrame(schema=SCHEMA)


@dataclass(frozen=True)
class Profile:
    """What ``gemms`` reads of a rank."""

    rank: int
    gemms: pl.DataFrame
    device: str = "NVIDIA H100 80GB HBM3"
    gemm_compute_ns: int = 0
    num_multiprocessors: int | None = None


def found(*profiles: Profile, rows: pl.DataFrame = NO_ROWS) -> Gemms:
    result = gemms(profiles, rows)
    assert result is not None
    return result


def test_buckets_are_half_open() -> None:
    calls = table(*(call(m=m) for m in (15, 16, 31, 32, 2048)))
    buckets = found(Profile(0, calls)).by_rows
    assert buckets.select("low", "high", "num_calls").rows() == [(0, 16, 1), (16, 32, 2), (32, 64, 1), (2048, None, 1)]


def test_layers_and_steps_sum_over_experts_and_the_rest_apart() -> None:
    calls = table(call(layer=1), call(layer=1), call(layer=2), call(layer=2, is_expert=False, phase="attention"))
    result = found(Profile(0, calls), Profile(1, calls))
    assert result.by_layer.select("layer", "num_calls", "time_ns").rows() == [(1, 4, 200_000), (2, 2, 100_000)]
    assert result.by_step.select("rank", "is_expert", "num_calls").rows() == [
        (0, False, 1), (0, True, 3), (1, False, 1), (1, True, 3),
    ]  # fmt: skip


def test_recomputed_work_is_no_work_of_the_model() -> None:
    calls = table(call(), call(is_recompute=True), call(kind="attention", flops=1000))
    result = found(Profile(3, calls))
    one = 2 * 64 * 256 * 512
    assert result.flops.rows() == [(3, 0, one + 1000, one, 989_500.0)]
    assert result.recompute_ns == 50_000


def test_covered_share_is_of_what_the_names_call_products() -> None:
    assert found(Profile(0, table(call()), gemm_compute_ns=200_000)).covered_share == 0.25
    assert found(Profile(0, table(call()), gemm_compute_ns=10)).covered_share == 1.0


def test_one_grouped_call_saves_gaps_and_all_fixed_times_but_one() -> None:
    """5 us fixed, 10 ns per row; four experts in one layer, one in another."""
    rows = (16, 64, 256, 1024)
    loop = [call(m=m, kernel_ns=5_000 + 10 * m, gap_ns=3_000 if m > 16 else 0) for m in rows]
    alone = call(m=512, kernel_ns=5_000 + 10 * 512, layer=7)
    saving = found(Profile(0, table(*loop, alone))).grouped_saving_ns
    assert saving == pytest.approx(3 * 3_000 + 3 * 5_000, rel=1e-3)


def test_counts_are_used_where_they_add_up_to_the_rows() -> None:
    grouped = call(kind="grouped", op="aten::_grouped_mm", divided="m", m=256, groups=4, rows=64.0, n=128)
    place = {"rank": [0], "step": [0], "microbatch": [0], "layer": [0]}

    def tile_loss(counts: list[int]) -> int:
        rows = pl.DataFrame(place | {"group_rows": [counts]}, schema=SCHEMA)
        return int(found(Profile(0, table(grouped)), rows=rows).by_step["tile_ns"][0])

    assert tile_loss([64, 64, 64, 64]) == 34  # 4 half-filled tiles double the ideal 33.9 ns
    assert tile_loss([1, 1, 1, 253]) == 51  # 5 tiles
    assert tile_loss([1, 1, 1, 1]) == 34  # counts of something else


def test_ranks_without_shapes_give_nothing() -> None:
    assert gemms([Profile(0, table())], NO_ROWS) is None


def test_single_experts_are_told_apart_by_their_order() -> None:
    """Two experts in two layers; a lone product of a third layer is no loop."""
    loop = [call(m=m, layer=layer, kernel_ns=100 * m, start_ns=1000 * layer + m) for layer in (1, 2) for m in (10, 30)]
    table_ = found(Profile(4, table(*loop, call(m=500, layer=7)))).by_expert
    assert table_.select("rank", "expert", "num_calls", "rows", "time_ns", "is_shared_out").rows() == [
        (4, 0, 2, 10.0, 2_000.0, False), (4, 1, 2, 30.0, 6_000.0, False),
    ]  # fmt: skip


def test_a_grouped_call_is_shared_out_by_the_rows_that_its_tiles_compute() -> None:
    """Tiles of 128 rows: groups of 1, 127 and 200 rows compute 128, 128 and 256."""
    grouped = call(kind="grouped", op="aten::_grouped_mm", divided="m", m=328, groups=3, rows=328 / 3, n=128)
    place = {"rank": [0], "step": [0], "microbatch": [0], "layer": [0]}
    rows = pl.DataFrame(place | {"group_rows": [[1, 127, 200]]}, schema=SCHEMA)
    result = found(Profile(0, table(grouped)), rows=rows)
    assert result.by_expert["rows"].to_list() == [1.0, 127.0, 200.0]
    time = float(result.by_step["time_ns"][0])
    assert result.by_expert["time_ns"].to_list() == [time / 4, time / 4, time / 2]
    assert result.by_expert["loss_ns"].sum() == pytest.approx(result.by_step["loss_ns"][0])
    assert found(Profile(0, table(grouped))).by_expert.is_empty()
